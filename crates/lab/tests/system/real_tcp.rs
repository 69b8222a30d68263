//! Tests TCP on the direct path with the libraries and programs that people use: a server on hyper
//! over the tokio types, from which curl fetches; a client on hyper that fetches from an nginx; TLS
//! by rustls at either end, with OpenSSL (curl) and with rustls over sockets of the kernel at the
//! other; a server of iperf3, to which a client of ours speaks its protocol. Each file must arrive
//! with every byte right, over IPv4 and IPv6.

use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use netnice_lab::experiment::bench::at;
use netnice_lab::process::{self, EVENT_TIMEOUT, Proc};
use netnice_lab::testbed::TestBed;
use netnice_lab::traffic::direct_tcp::{fill, first_wrong};
use netnice_lab::traffic::iperf3::Counted;
use netnice_lab::traffic::real_programs;
use netnice_lab::world::{Family, Host};

/// A test bed with a managed link at the client's host, where the programs with their own TCP run.
fn bed() -> Result<TestBed> {
    let bed = TestBed::new()?;
    let device = &bed.world.client().port().device;
    bed.run_ok(&format!("link {device} --rate 1gbit"));
    Ok(bed)
}

/// Starts `netnice-lab traffic http-serve` on a host.
fn serve(host: &Host, at: SocketAddr, more: &[&str]) -> Result<Proc> {
    let mut command = host.ns.command(process::binary("netnice-lab")?);
    command.args(["traffic", "http-serve", "--listen", &at.to_string()]);
    command.args(more);
    let mut server = Proc::start(command)?;
    server.next_json("ready", EVENT_TIMEOUT)?;
    Ok(server)
}

/// Runs `netnice-lab traffic http-fetch` on a host to its end.
fn fetch(host: &Host, from: SocketAddr, file: &str, bytes: u64, more: &[&str]) -> Result<()> {
    let mut command = host.ns.command(process::binary("netnice-lab")?);
    command.args(["traffic", "http-fetch", "--connect", &from.to_string()]);
    command.args(["--file", file, "--bytes", &bytes.to_string()]);
    process::run(command.args(more)).map(drop)
}

/// A curl on a host fetches a file from `http-serve`, and its bytes are compared.
fn curl(host: &Host, from: SocketAddr, bytes: u64, certificate: Option<&Path>) -> Result<()> {
    let mut command = host.ns.command("curl");
    command.args(["-gsS", "--fail"]);
    match certificate {
        None => command.arg(format!("http://{from}/{bytes}")),
        Some(file) => {
            let (name, port) = ("netnice-lab", from.port());
            command.arg("--cacert").arg(file);
            let address = match from {
                SocketAddr::V4(from) => from.ip().to_string(),
                SocketAddr::V6(from) => format!("[{}]", from.ip()),
            };
            command.args(["--resolve", &format!("{name}:{port}:{address}")]);
            command.arg(format!("https://{name}:{port}/{bytes}"))
        }
    };
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let mut output = child.stdout.take().context("no output")?;
    let mut position = 0;
    let mut block = vec![0; 256 << 10];
    let read = loop {
        match output.read(&mut block) {
            Ok(0) => break Ok(()),
            Ok(read) => {
                if let Some(at) = first_wrong(&block[..read], position) {
                    break Err(anyhow::anyhow!("a wrong byte at {at}"));
                }
                position += read as u64;
            }
            Err(error) => break Err(error.into()),
        }
    };
    drop(output);
    let status = child.wait()?;
    read?;
    ensure!(status.success(), "curl: {status}, after {position} bytes");
    ensure!(position == bytes, "{position} of {bytes} bytes");
    Ok(())
}

fn runtime(bed: &TestBed) -> String {
    bed.netnice.runtime().display().to_string()
}

/// A curl fetches a file of `bytes` from our server, over each family, without and with TLS.
fn curl_fetches(bytes: u64) -> Result<()> {
    let bed = bed()?;
    let (ours, theirs) = (bed.world.client(), bed.world.server());
    let runtime = runtime(&bed);
    let certificate = bed.world.folder().join("certificate");
    let file = certificate.display().to_string();
    for (family, port) in [(Family::V4, 8001), (Family::V6, 8002)] {
        let plain = at(ours, family, port);
        let _plain = serve(ours, plain, &["--runtime-dir", &runtime])?;
        curl(theirs, plain, bytes, None).with_context(|| format!("{family:?}"))?;
        // Several at the same time.
        std::thread::scope(|scope| {
            let fetch = || curl(theirs, plain, bytes / 16, None);
            let all: Vec<_> = (0..4).map(|_| scope.spawn(fetch)).collect();
            all.into_iter()
                .try_for_each(|one| one.join().expect("no panic"))
        })?;
        let secure = at(ours, family, port + 10);
        let more = ["--runtime-dir", &runtime, "--certificate", &file];
        let _secure = serve(ours, secure, &more)?;
        curl(theirs, secure, bytes, Some(&certificate))
            .with_context(|| format!("{family:?} with TLS"))?;
    }
    Ok(())
}

#[test]
fn curl_fetches_from_hyper_over_this_tcp() -> Result<()> {
    curl_fetches(64 << 20)
}

#[test]
#[ignore = "a gibibyte, four times"]
fn curl_fetches_a_gibibyte() -> Result<()> {
    curl_fetches(1 << 30)
}

#[test]
fn a_client_on_hyper_fetches_from_nginx() -> Result<()> {
    let bytes = 16 << 20;
    let bed = bed()?;
    let (ours, theirs) = (bed.world.client(), bed.world.server());
    let folder = bed.world.folder();
    let mut content = vec![0; bytes as usize];
    fill(&mut content, 0);
    for family in [Family::V4, Family::V6] {
        let web = at(theirs, family, 80);
        let nginx = real_programs::nginx(theirs, web, folder, bytes)?;
        let _nginx = nginx.context("cargo xtask setup installs nginx")?;
        std::fs::write(folder.join("www/file"), &content)?;
        let more = ["--runtime-dir", &runtime(&bed)];
        fetch(ours, web, "/file", bytes, &more).with_context(|| format!("{family:?}"))?;
    }
    Ok(())
}

#[test]
fn rustls_at_both_ends() -> Result<()> {
    let bytes = 16 << 20;
    let bed = bed()?;
    let (ours, theirs) = (bed.world.client(), bed.world.server());
    let runtime = runtime(&bed);
    let certificate = bed.world.folder().join("certificate");
    let file = certificate.display().to_string();
    let path = format!("/{bytes}");
    for family in [Family::V4, Family::V6] {
        let direct: &[&str] = &["--certificate", &file, "--runtime-dir", &runtime];
        let kernel: &[&str] = &["--certificate", &file, "--kernel"];
        let cases = [
            (ours, theirs, direct, kernel),
            (theirs, ours, kernel, direct),
        ];
        for (server, client, serves, fetches) in cases {
            let from = at(server, family, 8021);
            let _server = serve(server, from, serves)?;
            fetch(client, from, &path, bytes, fetches)
                .with_context(|| format!("{family:?}, {fetches:?}"))?;
        }
    }
    Ok(())
}

#[test]
fn an_iperf3_at_the_other_end_counts_the_same_bytes() -> Result<()> {
    let bed = bed()?;
    let (ours, theirs) = (bed.world.client(), bed.world.server());
    for (family, port) in [(Family::V4, 5201), (Family::V6, 5202)] {
        for reverse in [false, true] {
            let _server = real_programs::iperf_server(theirs, port)?;
            let mut command = ours.ns.command(process::binary("netnice-lab")?);
            let to = at(theirs, family, port).to_string();
            command.args(["traffic", "iperf3", "--connect", &to, "--seconds", "1"]);
            command.args(["--runtime-dir", &runtime(&bed)]);
            command.args(reverse.then_some("--reverse"));
            let mut client = Proc::start(command)?;
            let counted = client.next_json("counted", EVENT_TIMEOUT);
            let counted = counted.with_context(|| client.take_stderr())?;
            let counted: Counted = serde_json::from_value(counted["counted"].clone())?;
            // What was in flight when the test ended counts at one end only.
            let (more, less) = (
                counted.own.max(counted.server),
                counted.own.min(counted.server),
            );
            ensure!(
                less > 1 << 20 && more - less <= more / 10 + (8 << 20),
                "{counted:?}"
            );
            println!("{family:?}, reverse {reverse}: {counted:?}");
        }
    }
    Ok(())
}
