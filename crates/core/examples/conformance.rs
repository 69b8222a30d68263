//! Checks whether traffic conforms to a contract. The program reads one packet per line from its
//! standard input, `SECONDS BYTES`, as `tshark -T fields -e frame.time_relative -e frame.len`
//! prints them.
//!
//! `cargo run -p netnice-core --example conformance -- 'cell pcr=1mbit,cdvt=1ms' < packets.txt`
//!
//! The program prints each packet that does not conform, and the number of packets. Without a
//! contract it checks five packets of its own. The exit status is 0 if every packet conforms. The
//! exit status is 1 if a packet does not conform, if the contract or a line is invalid, or if times
//! and lengths cannot check the contract.

use std::error::Error;
use std::io::BufRead;
use std::process::ExitCode;

use netnice_core::contract::Contract;
use netnice_core::policer::{Observation, Policer};
use netnice_core::units::{Bytes, Instant};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let contract = std::env::args().nth(1);
    let (contract, lines): (String, Box<dyn BufRead>) = match contract {
        Some(contract) => (contract, Box::new(std::io::stdin().lock())),
        None => (OWN.0.into(), Box::new(OWN.1.as_bytes())),
    };
    let parsed: Contract = contract.parse()?;
    let mut policer = Policer::contract(&parsed)?;
    let mut bad = 0_u64;
    for line in lines.lines() {
        let line = line?;
        if let Err(violation) = policer.handle(packet(&line)?) {
            println!("{violation}");
            bad += 1;
        }
    }
    println!(
        "{} packets, {bad} do not conform to {contract}",
        policer.count()
    );
    Ok(ExitCode::from(u8::from(bad > 0)))
}

/// Parses `SECONDS BYTES`. Digits below a nanosecond are dropped.
fn packet(line: &str) -> Result<Observation, Box<dyn Error>> {
    let wrong = || format!("'{line}' is not SECONDS BYTES");
    let (seconds, bytes) = line.split_once(char::is_whitespace).ok_or_else(wrong)?;
    let (whole, part) = seconds.split_once('.').unwrap_or((seconds, ""));
    let nanos: u64 = format!("{part:0<9.9}").parse().map_err(|_| wrong())?;
    let whole: u64 = whole.parse().map_err(|_| wrong())?;
    let at = whole
        .checked_mul(1_000_000_000)
        .and_then(|whole| whole.checked_add(nanos));
    Ok(Observation {
        at: Instant(at.ok_or_else(wrong)?),
        length: Bytes(bytes.trim().parse().map_err(|_| wrong())?),
    })
}

/// A contract, and packets to check. 1,250 bytes are 10 ms of 1 Mbit/s, so the fourth packet is 4
/// ms too early.
const OWN: (&str, &str) = (
    "cell pcr=1mbit,cdvt=1ms",
    "0.000 1250\n0.010 1250\n0.019 1250\n0.025 1250\n0.030 1250\n",
);
