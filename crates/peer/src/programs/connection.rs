//! The tasks of a program's connection: one reads messages, one writes. [`Link`] is the sending
//! side. Nothing fails: the end of a connection is a [`Report`].

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use netnice_api::channels::{
    FromProgram, LONGEST_FROM_PROGRAM, ToProgram, decode, encode_to_program,
};
use netnice_api::frame::Decoder;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use super::ProgramId;

/// What the tasks report.
pub(super) enum Report {
    Message {
        program: ProgramId,
        message: FromProgram,
    },
    Ended {
        program: ProgramId,
        reason: String,
    },
}

/// The sending side. Dropping it closes the connection.
pub(super) struct Link {
    frames: mpsc::UnboundedSender<Vec<u8>>,
    /// Bytes that wait to be sent.
    waiting: Arc<AtomicUsize>,
    /// Ends the reader with a reason.
    fault: Option<oneshot::Sender<String>>,
    tasks: [AbortHandle; 2],
}

impl Link {
    pub(super) fn start(
        program: ProgramId,
        stream: UnixStream,
        reports: mpsc::Sender<Report>,
    ) -> Link {
        let (reading, writing) = stream.into_split();
        let (frames, queue) = mpsc::unbounded_channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let (fault, faulty) = oneshot::channel();
        let reader = tokio::spawn(async move {
            let reason = tokio::select! {
                reason = read(program, reading, &reports) => reason,
                Ok(reason) = faulty => reason,
            };
            // If the owner has ended, the report is not needed.
            let _ = reports.send(Report::Ended { program, reason }).await;
        });
        let writer = tokio::spawn(write(queue, waiting.clone(), writing));
        Link {
            frames,
            waiting,
            fault: Some(fault),
            tasks: [reader.abort_handle(), writer.abort_handle()],
        }
    }

    /// Queues a message. If too much waits already, the connection ends.
    pub(super) fn send(&mut self, message: &ToProgram) {
        let fault = match encode_to_program(message) {
            Ok(frame) => {
                let waiting = self.waiting.fetch_add(frame.len(), Ordering::Relaxed);
                if waiting <= MOST_WAITING {
                    // If the writer has ended, the connection is broken, and the reader reports it.
                    let _ = self.frames.send(frame);
                    return;
                }
                format!("it does not read: more than {MOST_WAITING} bytes wait")
            }
            Err(error) => error.to_string(),
        };
        if let Some(reporting) = self.fault.take() {
            let _ = reporting.send(fault);
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

/// Reads messages until the connection ends; returns why. Only one message of a connection waits
/// for the owner, so a program that sends much delays only its own messages.
async fn read(
    program: ProgramId,
    mut stream: impl AsyncRead + Unpin,
    reports: &mpsc::Sender<Report>,
) -> String {
    let mut decoder = Decoder::new(LONGEST_FROM_PROGRAM);
    let mut buffer = vec![0; READ_AT_ONCE];
    loop {
        let length = match stream.read(&mut buffer).await {
            Ok(0) => return "the program has ended".to_owned(),
            Ok(length) => length,
            Err(error) => return error.kind().to_string(),
        };
        decoder.push(&buffer[..length]);
        loop {
            let message = match decoder.poll() {
                Ok(None) => break,
                Ok(Some(body)) => decode(&body).map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            match message {
                Ok(message) => {
                    let report = Report::Message { program, message };
                    if reports.send(report).await.is_err() {
                        return "netnice-peer has stopped".to_owned();
                    }
                }
                Err(error) => return error,
            }
        }
    }
}

/// Writes frames until the owner drops its end of the queue.
async fn write(
    mut frames: mpsc::UnboundedReceiver<Vec<u8>>,
    waiting: Arc<AtomicUsize>,
    mut stream: OwnedWriteHalf,
) {
    while let Some(frame) = frames.recv().await {
        let written: io::Result<()> = stream.write_all(&frame).await;
        waiting.fetch_sub(frame.len(), Ordering::Relaxed);
        if written.is_err() {
            return;
        }
    }
}

/// The most bytes that wait for a program, beside one message.
const MOST_WAITING: usize = 1 << 20;
const READ_AT_ONCE: usize = 4 << 10;
