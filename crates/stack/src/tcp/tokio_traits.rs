//! The traits of tokio for a stream. `poll_shutdown` waits until the peer has acknowledged
//! everything, as [`Stream::finish`] does, because the program itself sends it. Calls fail as those
//! of the stream.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::stream::{Stream, io_error};

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = ready!(Stream::poll_read(
            &self,
            context,
            into.initialize_unfilled()
        ));
        into.advance(read.map_err(io_error)?);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Stream::poll_write(&self, context, bytes).map_err(io_error)
    }

    /// What was written leaves as soon as windows and contract permit.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_finish(context).map_err(io_error)
    }
}
