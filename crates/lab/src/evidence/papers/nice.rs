//! The paper NICE, figure by figure. No call fails.

use super::{Figure, Paper};

/// The paper.
pub(super) const NICE: Paper = Paper {
    name: "NICE",
    title: "netnice: nice is not only for CPUs",
    authors: "Okumura, Moir, Mossé, 2000",
    about: "A limit for what a program, its children and all their connections send and receive, \
            set as easily as nice(1) sets a priority.",
    terms: TERMS,
    figures: &[
        TABLE_1, FIGURE_3, FIGURE_4, FIGURE_5, FIGURE_6, FIGURE_7, FIGURE_8,
    ],
};

const TERMS: &[(&str, &str)] = &[
    (
        "Kbyte/s",
        "1024 bytes in each second. The paper's limit of 512 Kbyte/s is 524,288 bytes/s, or 4.19 \
         Mbit/s.",
    ),
    (
        "on the wire",
        "A packet counts with its Ethernet header of 14 bytes: a full packet has 1514 bytes. \
         netnice counts so.",
    ),
    (
        "at the network layer",
        "A packet counts from its IP header on: a full packet has 1500 bytes. The paper counts so.",
    ),
    (
        "goodput",
        "The payload that TCP delivers in order to the program, in bit/s, or in percent of what \
         the limit allows: 1448 of 1514 bytes of a full packet.",
    ),
    (
        "super-server (inetd, fair-inetd)",
        "A program that waits for connections and starts a server for each. The paper's \
         fair-inetd divides a total rate between the sessions that run.",
    ),
    (
        "round trip (RTT)",
        "The time from sending a key stroke of one byte until its echo arrives, in ms.",
    ),
    (
        "segment, hub (10Base-T)",
        "One Ethernet of 10 Mbit/s that all its hosts share, in both directions.",
    ),
    (
        "standard deviation (SD)",
        "How far single values are from their mean, in the unit of the values: the root of the \
         mean of the squared distances.",
    ),
];

const TABLE_1: Figure = Figure {
    ids: &["nice-tab1"],
    name: "Table 1",
    setup: "A program without a limit transfers a file of 45 Mbyte over the loopback interface of \
            one host, over and over. Runs with netnice and without it alternate: 120 runs of each \
            kind, of 20 transfers each. In the runs with netnice another process has a limit of \
            512 Kbyte/s in each direction, so all eBPF programs see every packet of the transfer.",
    drawn: "",
    saw: "Over 20 FTP transfers the mean throughput was 13.94 Mbyte/s with netnice (standard \
          deviation 0.66) and 13.65 Mbyte/s with an unmodified kernel (0.58). The ratio is 1.02, \
          and the paper calls the difference statistically insignificant.",
    holds: "Throughput with netnice is at least 0.99 of the throughput without it. The value is \
            the median of the ratios of neighbouring runs.",
    differs: "A small server and client of the lab transfer the file over TCP from memory, and \
              not FTP; each is bound to one processor. There are six times as many runs as in the \
              paper, because they scatter by more than the 1 % that is judged. The median of the \
              ratios is judged and not the ratio of the means, because two runs that follow each \
              other meet the same load of the machine; the ratio of the means is shown beside it.",
};

const FIGURE_3: Figure = Figure {
    ids: &["nice-fig3"],
    name: "Figure 3",
    setup: "A program sends over one TCP connection through a cable of 10 Mbit/s as fast as it \
            can. After 10 s the command `netnice set` limits the running program to send 512 \
            Kbyte/s. The transfer goes on for 20 s after the command ends.",
    drawn: "The paper's figure shows the sender's traffic against time: 10 s without a limit and \
            then the limit of 512 Kbyte/s. Its axes are lost in the text that we have; the \
            traffic was measured with tcpdump on a third machine on the same 10 Mbit/s segment.",
    saw: "The output follows the limit as soon as netnice is invoked. The paper gives no number \
          for it.",
    holds: "From 200 ms after the command ends, the rate over any second is within 1 % of the \
            limit. From 1 s on, goodput is at least 99 % of what the limit allows, no packet is \
            sent again, and no segment arrives while an earlier one is missing.",
    differs: "The limit counts bytes on the wire; at the network layer, where the paper counts, \
              it is 507 Kbyte/s for full packets. The command takes some hundred ms, because the \
              first limit loads eBPF programs into the kernel; the limit is in force when it \
              ends, and times count from there. A tap at the receiver's end of the cable replaces \
              the third machine.",
};

const FIGURE_4: Figure = Figure {
    ids: &["nice-fig4"],
    name: "Figure 4",
    setup: "A program receives over one TCP connection through a cable of 10 Mbit/s as fast as it \
            can. After 10 s the command `netnice set` limits the running program to receive 512 \
            Kbyte/s. The transfer goes on for 20 s after the command ends.",
    drawn: "The paper's figure shows the receiver's traffic against time: 10 s without a limit \
            and then the limit of 512 Kbyte/s, with more noise than for output. Its axes are lost \
            in the text that we have; the traffic was measured with tcpdump on a third machine on \
            the same 10 Mbit/s segment.",
    saw: "The input follows the limit, with more variation than the output, because the sender is \
          slowed down indirectly: the receiver's acknowledgements are delayed. The paper gives no \
          number for it.",
    holds: "From 1 s after the command ends, the mean rate that the program's host receives \
            behind the limit is within 2 % of the limit, and each second within 3 %. Goodput is \
            at least 98 % of what the limit allows.",
    differs: "Here arriving data waits in a queue of the receiving host and is dropped when the \
              queue is full, and the lost packets slow down the sender; the paper delays \
              acknowledgements. What is judged is the rate behind the limit (blue). The paper \
              measured on the segment (grey), which carries a little more, because dropped \
              packets are sent again; that rate is given below and not judged. The limit counts \
              bytes on the wire; at the network layer it is 507 Kbyte/s.",
};

const FIGURE_5: Figure = Figure {
    ids: &["nice-fig5"],
    name: "Figure 5",
    setup: "The super-server `netnice inetd` has a total of 512 Kbyte/s and the paper's \
            configuration C (its figure 2): ftp without a rate of its own, login and telnet with \
            32 Kbyte/s for each session. It starts vsftpd for each of three FTP clients, C1, C2 \
            and C3. They begin at 0, 10 and 20 s, and each fetches a file for 30 s.",
    drawn: "The paper's figure shows the throughput of the FTP sessions in Kbyte/s against time \
            from 0 to 50 s, with grey rectangles for the sessions.",
    saw: "The server divides the total evenly between the sessions that run: one session has 512 \
          Kbyte/s, two have 256 each, three have 170.7 each, then 256 and 512 again. It adapts \
          quickly after each change.",
    holds: "From 500 ms after each change of the number of sessions, each session is within 3 % \
            of its equal share, and the total of all sessions is within 1 % of 512 Kbyte/s.",
    differs: "No login or telnet session runs, so FTP has the whole total, as in the paper's \
              figure. All clients are processes of one host, and the cable between the hosts has \
              no rate of its own, so that only netnice limits. Rates count both directions on the \
              wire, as the limit does.",
};

const FIGURE_6: Figure = Figure {
    ids: &["nice-fig6"],
    name: "Figure 6",
    setup: "The hosts C1, C2, C3 and S1 share one segment of 10 Mbit/s. C3 sends a byte to S1 \
            every 100 ms over TCP and waits for its echo, from 0 to 40 s. C1 fetches a file of \
            128 Mbyte by FTP from S1 from 10 to 25 s, and C2 from 15 to 30 s. With netnice the \
            super-server on S1 has a total of 512 Kbyte/s for FTP; without netnice FTP has no \
            limit. There are ten runs of each kind.",
    drawn: TYPING_DRAWN,
    saw: "In the congested time from 10 to 30 s the mean round trip was 23.05 ms without netnice \
          (standard deviation 31.72 ms, values from 10 to 150 ms) and 0.49 ms with it (standard \
          deviation 0.97 ms).",
    holds: TYPING_HOLDS,
    differs: HUB,
};

const FIGURE_7: Figure = Figure {
    ids: &["nice-fig7"],
    name: "Figure 7",
    setup: "The hosts C1, C2, C3, S1 and S2 share one segment of 10 Mbit/s. C3 sends a byte to \
            S2, which sends no files, every 100 ms over TCP and waits for its echo, from 0 to 40 \
            s. C1 fetches a file of 128 Mbyte by FTP from S1 from 10 to 25 s, and C2 from 15 to \
            30 s. With netnice the super-server on S1 has a total of 512 Kbyte/s for FTP; without \
            netnice FTP has no limit. There are ten runs of each kind.",
    drawn: TYPING_DRAWN,
    saw: "In the congested time from 10 to 30 s the mean round trip was 9.19 ms without netnice \
          (standard deviation 16.75 ms) and 0.37 ms with it (standard deviation 0.45 ms).",
    holds: TYPING_HOLDS,
    differs: HUB,
};

const FIGURE_8: Figure = Figure {
    ids: &["nice-fig8"],
    name: "Figure 8",
    setup: "The servers S1 and S2 are on ports of 100 Mbit/s of a switch. C1, C2 and C3 share one \
            segment of 10 Mbit/s behind another port of it. C3 sends a byte to S2, which sends no \
            files, every 100 ms over TCP and waits for its echo, from 0 to 40 s. C1 fetches a \
            file of 128 Mbyte by FTP from S1 from 10 to 25 s, and C2 from 15 to 30 s. With \
            netnice the super-server on S1 has a total of 512 Kbyte/s for FTP; without netnice \
            FTP has no limit. There are ten runs of each kind.",
    drawn: TYPING_DRAWN,
    saw: "In the congested time from 10 to 30 s the mean round trip was 49.16 ms without netnice \
          (standard deviation 204.5 ms), longer than on the hub, because S1 fills the buffer of \
          the switch. It was 0.48 ms with netnice (standard deviation 1.35 ms).",
    holds: TYPING_HOLDS,
    differs: "The shape without netnice differs. The paper's standard deviation is above its \
              mean: its round trips are short ones and long spikes. Ours are a steady queue of \
              some tens of ms in the switch's port, because today's TCP (CUBIC) with large \
              windows keeps the port's buffer of 128 KiB full; the paper does not give its \
              buffer. Only the order of magnitude is therefore compared. The chart has a \
              logarithmic axis, so that both kinds are visible.",
};

/// What figures 6, 7 and 8 show in the paper.
const TYPING_DRAWN: &str = "The paper's figure shows the round trip of each key stroke in ms \
                            against time from 0 to 40 s, for one of the ten experiments, without \
                            netnice and with it.";

/// What must hold of figures 6, 7 and 8.
const TYPING_HOLDS: &str = "With netnice, the mean of the congested time is at most 0.6 ms above \
                            that of the idle time (1 to 10 s of the same runs), and the 99th \
                            percentile at most 1.21 ms above, the time of one full packet. \
                            Without netnice, the mean must be at least ten times as long as with \
                            it, and from a third of the paper's mean to three times that mean.";

/// How figures 6 and 7 differ from the paper's.
const HUB: &str = "The shape without netnice differs. The paper's standard deviation is above its \
                   mean: its round trips are short ones and long spikes, from collisions on a \
                   real hub and the small windows of FreeBSD's TCP, as we suppose. Ours are a \
                   steady queue of some tens of ms, because today's TCP (CUBIC) with large \
                   windows keeps the interface's queue of 50 full packets full, and our segment \
                   sends packet by packet without collisions; a busy host keeps it for 8 packets. \
                   Only the order of magnitude is therefore compared. The chart has a logarithmic \
                   axis, so that both kinds are visible.";
