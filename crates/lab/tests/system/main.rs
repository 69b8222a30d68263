//! The system tests run the release programs in worlds of network namespaces, on real packets.
//! docs/internals/testing.md describes how to run and write them.
//!
//! All tests are one program, which is linked once; cargo-nextest runs each test in a process of
//! its own. A module has the tests of one part of the product; `c_compiler` and `driver_client`
//! only help the others. `.config/nextest.toml` lists the modules whose tests run alone; the tests
//! of all others may run concurrently.

mod access;
mod bad_wire;
mod between_hosts;
mod budgets;
mod c_compiler;
mod capi;
mod channels;
mod clock;
mod containers;
mod datapath_speed;
mod death;
mod direct;
mod direct_any_program;
mod direct_contracts;
mod direct_deadlines;
mod direct_figures;
mod direct_greedy;
mod direct_hostile;
mod direct_isolation;
mod direct_lending;
mod direct_programs;
mod direct_protocols;
mod direct_quic;
mod direct_receive;
mod direct_scale;
mod direct_serve;
mod direct_stops;
mod direct_tcp;
mod driver;
mod driver_client;
mod dscp;
mod estimates;
mod evasion;
mod exhaustion;
mod faults;
mod flows;
mod front;
mod groups;
mod guarantees;
mod inetd;
mod input;
mod interfaces;
mod leftovers;
mod limits;
mod link_speeds;
mod load;
mod metrics;
mod output;
mod packet_costs;
mod persistence;
mod policy;
mod precedence;
mod processor_time;
mod programs;
mod quotas;
mod real_clients;
mod real_tcp;
mod refusals;
mod repairs;
mod schedules;
mod service;
mod share;
mod shell;
mod simulated;
mod storm;
mod tcp_changes;
mod tcp_death;
mod tcp_flows;
mod tcp_loss;
mod tcp_promotion;
mod tcp_scripts;
mod tcp_servers;
mod top;
mod top_programs;
mod traffic_quotas;
mod units;
mod until_exit;
mod users;
mod worlds;
mod yields;
