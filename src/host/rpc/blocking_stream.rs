//! Blocking reads and writes on a descriptor that another process may have made non-blocking.
//!
//! `O_NONBLOCK` belongs to the open file description, which Pixir shares with the shell or the wrapper
//! that started it: `node` sets it on inherited pipes. `EAGAIN` is then not the end of a stream.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

/// A stream whose reads and writes block, regardless of the flags of its descriptor.
#[derive(Debug)]
pub struct BlockingStream<T>(pub T);

impl<T: AsFd> AsFd for BlockingStream<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl<T: Read + AsFd> Read for BlockingStream<T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    wait_until_ready(self.0.as_fd(), PollFlags::IN)?;
                }
                done => return done,
            }
        }
    }
}

impl<T: Write + AsFd> Write for BlockingStream<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.0.write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    wait_until_ready(self.0.as_fd(), PollFlags::OUT)?;
                }
                done => return done,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        loop {
            match self.0.flush() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    wait_until_ready(self.0.as_fd(), PollFlags::OUT)?;
                }
                done => return done,
            }
        }
    }
}

/// Waits until a stream can be read or written, or has ended.
pub fn wait_until_ready(stream: BorrowedFd<'_>, event: PollFlags) -> io::Result<()> {
    match poll(&mut [PollFd::from_borrowed_fd(stream, event)], None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
