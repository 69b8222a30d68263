//! Helps tests of `netnice-driver`: starts a driver process, sends it requests with the daemon's
//! protocol, and has programs that use the ring. The functions fail if a process cannot be started,
//! if the memory of a program cannot be made, if a frame does not fit, or if the driver does not
//! answer within [`EVENT_TIMEOUT`], or answers anything but what they need.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use etherparse::PacketBuilder;
use netnice_api::RuntimeDir;
use netnice_api::direct::{Endpoint, ShapeDoc};
use netnice_api::driver::{
    CensusDoc, DriverCall, DriverEvent, DriverFlow, DriverMessage, DriverReply, DriverRequest,
    TotalsDoc,
};
use netnice_api::frame::{Decoder, LONGEST_DRIVER_MESSAGE};
use netnice_api::{decode_driver_message, encode_driver_call, fds};
use netnice_driver::link::Interface;
use netnice_kernel::process::PidFd;
use netnice_lab::direct::shared::Shared;
use netnice_lab::experiment::bench::at;
use netnice_lab::process::{EVENT_TIMEOUT, Proc, binary, own_group};
use netnice_lab::world::{Family, Host, NetnsHandle, World};
use netnice_ring::layout::{FlowLocation, Shape};
use netnice_ring::program::{Attachment, Piece, ProgramRings};
use netnice_ring::record::Status;

/// A driver of the client's interface, with a runtime folder of its own.
pub struct Driver {
    process: Proc,
    runtime: RuntimeDir,
    command: Vec<String>,
    iface: String,
    handle: NetnsHandle,
}

impl Driver {
    /// Starts a driver with these options, and waits until it listens.
    pub fn start(world: &World, options: &str) -> Result<Driver> {
        Driver::start_through(world, &[], options)
    }

    /// Starts a driver through another command that executes it.
    pub fn start_through(world: &World, words: &[String], options: &str) -> Result<Driver> {
        let host = world.client();
        let iface = host.port().device.clone();
        let folder = world.folder().join("driver");
        let mut command = words.to_vec();
        command.extend([
            binary("netnice-driver")?.display().to_string(),
            "--runtime-dir".to_owned(),
            folder.display().to_string(),
            "--rate".to_owned(),
            "1gbit".to_owned(),
        ]);
        command.extend(options.split_whitespace().map(str::to_owned));
        command.push(iface.clone());
        let handle = host.ns.handle();
        let driver = Driver {
            process: start_process(&handle, &command)?,
            runtime: RuntimeDir::choose(Some(folder), None),
            command,
            iface,
            handle,
        };
        driver.await_listening()
    }

    fn await_listening(mut self) -> Result<Driver> {
        let socket = self.runtime.driver_socket(&self.iface);
        let until = Instant::now() + EVENT_TIMEOUT;
        while UnixStream::connect(&socket).is_err() {
            ensure!(
                self.is_running() && Instant::now() < until,
                "the driver does not listen: {}",
                self.process.take_stderr()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(self)
    }

    /// Connects to the driver.
    pub fn call(&self) -> Result<Caller> {
        let stream = UnixStream::connect(self.runtime.driver_socket(&self.iface))?;
        stream.set_read_timeout(Some(EVENT_TIMEOUT))?;
        Ok(Caller {
            stream,
            decoder: Decoder::new(LONGEST_DRIVER_MESSAGE),
            descriptors: VecDeque::new(),
            events: VecDeque::new(),
            next: 1,
        })
    }

    /// The driver's process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Whether the driver has not ended.
    pub fn is_running(&mut self) -> bool {
        self.process.is_running()
    }

    /// Kills the driver (SIGKILL) and waits for its end.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts a second driver for the same interface, which must fail. Returns its standard error.
    pub fn start_second(&self) -> Result<String> {
        let mut second = start_process(&self.handle, &self.command)?;
        ensure!(!second.wait(EVENT_TIMEOUT)?.success());
        Ok(second.take_stderr())
    }

    /// Starts the driver again, in the same folder.
    pub fn restart(&mut self) -> Result<()> {
        self.process = start_process(&self.handle, &self.command)?;
        wait_for("it listens again", || {
            Ok(UnixStream::connect(self.runtime.driver_socket(&self.iface)).is_ok())
        })
    }

    /// Asks the driver to end (SIGTERM) and waits for it.
    pub fn terminate(&mut self) -> Result<ExitStatus> {
        self.process.terminate(EVENT_TIMEOUT);
        self.process.wait(Duration::ZERO)
    }

    /// The names in the drivers' folder.
    pub fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.runtime.drivers());
        let names = entries.into_iter().flatten().flatten();
        names
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect()
    }

    /// Standard error of the driver since the last call.
    pub fn take_stderr(&mut self) -> String {
        self.process.take_stderr()
    }
}

fn start_process(handle: &NetnsHandle, words: &[String]) -> Result<Proc> {
    let (program, rest) = words.split_first().context("a program")?;
    let mut command = handle.command(program);
    command.args(rest);
    Proc::start(command)
}

/// A connection to a driver.
pub struct Caller {
    pub stream: UnixStream,
    decoder: Decoder,
    descriptors: VecDeque<OwnedFd>,
    events: VecDeque<DriverEvent>,
    next: u64,
}

impl Caller {
    /// Sends a request and waits for the answer.
    pub fn ask(&mut self, ask: DriverRequest) -> Result<DriverReply> {
        self.ask_with(ask, None)
    }

    /// Sends a request with a descriptor and waits for the answer.
    pub fn ask_with(&mut self, ask: DriverRequest, fd: Option<&PidFd>) -> Result<DriverReply> {
        let id = self.send_request(ask, fd)?;
        self.await_answer(id)
    }

    /// Sends a request without waiting; returns its id.
    pub fn send_request(&mut self, ask: DriverRequest, fd: Option<&PidFd>) -> Result<u64> {
        let id = self.next;
        self.next += 1;
        let bytes = encode_driver_call(&DriverCall { id, request: ask })?;
        let fd: Vec<_> = fd.iter().map(AsFd::as_fd).collect();
        let sent = fds::send(self.stream.as_fd(), &bytes, &fd)?;
        ensure!(sent == bytes.len(), "the driver reads too slowly");
        Ok(id)
    }

    /// The answer to the request `asked`.
    pub fn await_answer(&mut self, asked: u64) -> Result<DriverReply> {
        loop {
            match self.read_message()? {
                DriverMessage::Event(event) => self.events.push_back(event),
                DriverMessage::Reply { id, reply: answer } => {
                    ensure!(id == asked, "an answer to {id}, and {asked} was asked");
                    return Ok(answer);
                }
            }
        }
    }

    /// Sends a request that must be answered with `Done`.
    pub fn done(&mut self, ask: DriverRequest) -> Result<()> {
        match self.ask(ask)? {
            DriverReply::Done => Ok(()),
            other => bail!("{other:?}"),
        }
    }

    /// The complete state of the driver.
    pub fn census(&mut self) -> Result<CensusDoc> {
        match self.ask(DriverRequest::Census)? {
            DriverReply::Census(census) => Ok(*census),
            other => bail!("{other:?}"),
        }
    }

    /// Sums over all flows of the driver, including closed flows.
    pub fn totals(&mut self) -> Result<TotalsDoc> {
        match self.ask(DriverRequest::Totals)? {
            DriverReply::Totals(totals) => Ok(totals),
            other => bail!("{other:?}"),
        }
    }

    /// The next event from the driver; fails if none comes `within` this time, or if an answer
    /// comes.
    pub fn event(&mut self, within: Duration) -> Result<DriverEvent> {
        if let Some(event) = self.events.pop_front() {
            return Ok(event);
        }
        self.stream.set_read_timeout(Some(within))?;
        let word = self.read_message();
        self.stream.set_read_timeout(Some(EVENT_TIMEOUT))?;
        match word? {
            DriverMessage::Event(event) => Ok(event),
            other => bail!("{other:?}"),
        }
    }

    /// The error with which the driver closes the connection.
    pub fn closing_error(&mut self) -> Result<String> {
        let DriverMessage::Reply {
            reply: DriverReply::Failed { why },
            ..
        } = self.read_message()?
        else {
            bail!("it is no reason")
        };
        ensure!(
            self.stream.read(&mut [0; 10]).unwrap_or(0) == 0,
            "it goes on"
        );
        Ok(why)
    }

    fn read_message(&mut self) -> Result<DriverMessage> {
        let mut bytes = [0; 64 * 1024];
        loop {
            if let Some(body) = self.decoder.poll()? {
                return Ok(decode_driver_message(&body)?);
            }
            let received = fds::receive(self.stream.as_fd(), &mut bytes, fds::MAX_FDS)?;
            ensure!(received.bytes > 0, "the driver hung up");
            ensure!(!received.surplus);
            self.descriptors.extend(received.fds);
            self.decoder.push(&bytes[..received.bytes]);
        }
    }
}

/// A process with flows. This test process uses the ring in its place.
pub struct Program {
    pub number: u32,
    pub attachment: Attachment,
    process: Proc,
    memory: Arc<Shared>,
    file: File,
    doorbell: OwnedFd,
    flow: Option<ProgramRings>,
}

/// The memory of a test's flow.
pub const SHAPE: ShapeDoc = ShapeDoc {
    chunk_bytes: 2048,
    chunks: 64,
    transmit_entries: 64,
    receive_entries: 64,
};

impl Program {
    /// Attaches a program of root.
    pub fn attach(daemon: &mut Caller, flows: u32, bytes: u64) -> Result<Program> {
        Program::attach_of(daemon, (0, None), flows, bytes)
    }

    /// Attaches a program of the user `uid`, whose memory is limited to `most` bytes.
    pub fn attach_of(
        daemon: &mut Caller,
        (uid, most): (u32, Option<u64>),
        flows: u32,
        bytes: u64,
    ) -> Result<Program> {
        let mut command = own_group("sleep");
        command.arg("1000");
        let process = Proc::start(command)?;
        let pid = process.pid();
        let pidfd = PidFd::open(pid)?;
        let asked = DriverRequest::Attach {
            pid,
            uid,
            flows,
            bytes,
            memory_limit: most,
            secret: None,
        };
        let answer = daemon.ask_with(asked, Some(&pidfd))?;
        let DriverReply::Attached { program } = answer else {
            bail!("{answer:?}")
        };
        let mut descriptor = || daemon.descriptors.pop_front().context("three descriptors");
        let (memory, to_driver, to_program) = (descriptor()?, descriptor()?, descriptor()?);
        let file = File::from(memory.try_clone()?);
        Ok(Program {
            number: program,
            doorbell: to_driver.try_clone()?,
            attachment: Attachment::new(memory, to_driver, to_program)?,
            process,
            memory: Arc::new(Shared::map(&file)?),
            file,
            flow: None,
        })
    }

    /// The doorbell to the driver.
    pub fn doorbell(&self) -> &OwnedFd {
        &self.doorbell
    }

    /// The program's memory file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The mapping of the memory file.
    pub fn memory(&self) -> Arc<Shared> {
        self.memory.clone()
    }

    /// Opens a flow with primed buffers and returns its number; the other functions use this flow
    /// from now on.
    pub fn open(&mut self, daemon: &mut Caller, asked: DriverFlow) -> Result<u32> {
        let shape = Shape {
            chunk_bytes: asked.shape.chunk_bytes,
            chunks: asked.shape.chunks,
            transmit_entries: asked.shape.transmit_entries,
            receive_entries: asked.shape.receive_entries,
        };
        let answer = daemon.ask(DriverRequest::Open(Box::new(asked)))?;
        let DriverReply::Opened { flow, slot, offset } = answer else {
            bail!("{answer:?}")
        };
        let place = FlowLocation {
            slot,
            offset,
            shape,
        };
        self.flow = None;
        let mut opened = self.attachment.flow(place)?;
        for _ in 0..shape.chunks.min(shape.receive_entries / 2) / 2 {
            let chunk = opened.chunk().context("a chunk")?;
            let piece = Piece {
                chunk,
                start: 0,
                length: shape.chunk_bytes,
            };
            opened.prime(&[piece]).map_err(|why| anyhow!("{why:?}"))?;
        }
        opened.publish();
        self.flow = Some(opened);
        Ok(flow)
    }

    /// The rings of its open flow; fails if it has none.
    pub fn flow(&mut self) -> Result<&mut ProgramRings> {
        self.flow.as_mut().context("a flow")
    }

    /// Submits a frame.
    pub fn send(&mut self, frame: &[u8]) -> Result<()> {
        let flow = self.flow.as_mut().context("a flow")?;
        while let Some(record) = flow.reclaim()? {
            flow.free_all(&record)?;
        }
        let chunk = flow.chunk().context("a chunk")?;
        flow.bytes_mut(chunk)?[..frame.len()].copy_from_slice(frame);
        let piece = Piece {
            chunk,
            start: 0,
            length: frame.len() as u32,
        };
        flow.submit(&[piece], false)
            .map_err(|why| anyhow!("{why:?}"))?;
        flow.publish();
        self.attachment.notify();
        Ok(())
    }

    /// Sends a frame as often as its contract allows, until `stop` is set.
    pub fn flood(&mut self, frame: &[u8], stop: &AtomicBool) -> Result<()> {
        while !stop.load(Ordering::Relaxed) {
            let flow = self.flow.as_mut().context("a flow")?;
            while let Some(record) = flow.reclaim()? {
                flow.free_all(&record)?;
            }
            while let Some(chunk) = flow.chunk() {
                flow.bytes_mut(chunk)?[..frame.len()].copy_from_slice(frame);
                let piece = Piece {
                    chunk,
                    start: 0,
                    length: frame.len() as u32,
                };
                if flow.submit(&[piece], false).is_err() {
                    flow.free(chunk)?;
                    break;
                }
            }
            if flow.publish() {
                self.attachment.notify();
            }
            self.attachment.wait(Some(Duration::from_millis(5)))?;
        }
        Ok(())
    }

    /// Waits until the driver returns frames, and frees them. Returns the status of the last one;
    /// fails if none is returned `within` this time.
    pub fn sent(&mut self, within: Duration) -> Result<Status> {
        let until = Instant::now() + within;
        loop {
            let flow = self.flow.as_mut().context("a flow")?;
            let mut last = None;
            while let Some(record) = flow.reclaim()? {
                flow.free_all(&record)?;
                last = Some(record.status());
            }
            if let Some(status) = last {
                return Ok(status);
            }
            let left = until.saturating_duration_since(Instant::now());
            ensure!(!left.is_zero(), "nothing came back");
            self.attachment.wait(Some(left))?;
        }
    }

    /// The next frame that is received; fails if none comes `within` this time.
    pub fn receive(&mut self, within: Duration) -> Result<Vec<u8>> {
        let until = Instant::now() + within;
        loop {
            let flow = self.flow.as_mut().context("a flow")?;
            if let Some(record) = flow.receive()? {
                let pair = record.pairs()[0];
                let chunk = flow.piece(&pair).chunk;
                let bytes = flow.bytes(chunk)?[..pair.length as usize].to_vec();
                let piece = Piece {
                    chunk,
                    start: 0,
                    length: SHAPE.chunk_bytes,
                };
                flow.prime(&[piece]).map_err(|why| anyhow!("{why:?}"))?;
                if flow.publish() {
                    self.attachment.notify();
                }
                return Ok(bytes);
            }
            let left = until.saturating_duration_since(Instant::now());
            ensure!(!left.is_zero(), "nothing was received");
            self.attachment.wait(Some(left))?;
        }
    }

    /// Kills its process.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Detaches it regularly.
    pub fn end(self, daemon: &mut Caller) -> Result<()> {
        let program = self.number;
        daemon.done(DriverRequest::Detach { program })
    }

    /// Overwrites the rings of its flow with invalid values, and notifies the driver.
    pub fn violate_a_rule(&mut self) -> Result<()> {
        let place = self.flow()?.location();
        let area = place.shape.plan()?.area();
        self.send(&[0; 60])?;
        self.memory.fill(place.offset, area, 0xff)?;
        // Sets all notices directly.
        self.memory.fill(0x200, 8, 0xff)?;
        // Notifies until the driver has disconnected the program, at most 1000 times.
        for _ in 0..1000 {
            self.attachment.notify();
            if self.attachment.ended().is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// A flow between two ports of the client and the server, for its program.
pub fn flow(world: &World, program: &Program, port: u16, to: Option<u16>) -> Result<DriverFlow> {
    let local = at(world.client(), Family::V4, port);
    let remote = to.map(|to| at(world.server(), Family::V4, to));
    Ok(DriverFlow {
        program: program.number,
        number: port.into(),
        endpoint: Endpoint::Udp { local, remote },
        next_hop: Some(mac(world.server())?),
        mtu: 1500,
        contract: "weight 100".to_owned(),
        granted: None,
        shape: SHAPE,
        in_order: false,
        receive_budget: None,
    })
}

/// A datagram as a program of the client sends it; the driver writes the MAC addresses.
pub fn udp(world: &World, from: u16, to: u16, data: &[u8]) -> Result<Vec<u8>> {
    let (local, remote) = (
        at(world.client(), Family::V4, from),
        at(world.server(), Family::V4, to),
    );
    let (SocketAddr::V4(local), SocketAddr::V4(remote)) = (local, remote) else {
        bail!("IPv4 was asked for")
    };
    let mut frame = Vec::new();
    PacketBuilder::ethernet2([0; 6], [0; 6])
        .ipv4(local.ip().octets(), remote.ip().octets(), 64)
        .udp(from, to)
        .write(&mut frame, data)?;
    Ok(frame)
}

/// The MAC address of a host's interface.
pub fn mac(host: &Host) -> Result<[u8; 6]> {
    host.ns
        .enter(|| Ok(Interface::read(&host.port().device)?.mac.0))
}

/// Whether the client's interface has an XDP program.
pub fn has_xdp(world: &World) -> Result<bool> {
    let host = world.client();
    let shown = host
        .ns
        .ip(&format!("-d link show {}", host.port().device))?;
    Ok(shown.contains("prog/xdp"))
}

/// Polls until `holds` returns `true`. Fails after [`EVENT_TIMEOUT`].
pub fn wait_for(what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
    let until = Instant::now() + EVENT_TIMEOUT;
    while !holds()? {
        ensure!(
            Instant::now() < until,
            "not within {EVENT_TIMEOUT:?}: {what}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// The request to close a flow without a reset.
pub(crate) fn close(flow: u32) -> DriverRequest {
    let reset = false;
    DriverRequest::Close { flow, reset }
}
