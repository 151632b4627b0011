//! The lifeline: the socket between Pixir and a supervisor, for orders, words and one descriptor.
//!
//! A socket and not a pipe, because an order may bring along what the command reads: the far end of
//! a pipe that Pixir writes to. The supervisor hands it on and keeps nothing of it.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

use super::order::{LARGEST_ORDER, Order};

/// How many bytes say how long an order is; a descriptor travels with them.
const LENGTH: usize = 4;

/// Pixir's end. Closing it, also by dropping it, kills what the supervisor watches.
#[derive(Debug)]
pub struct Lifeline(UnixStream);

/// What a command reads, on its way there. Pixir lets go of it once the command has it, so that
/// writing fails when nobody can read any more.
#[derive(Debug)]
pub struct Stdin(Mutex<Option<OwnedFd>>);

impl Stdin {
    /// A pipe to a command: what Pixir writes to, and what the command reads.
    pub fn piped() -> io::Result<(pipe::Sender, Self)> {
        let (sender, receiver) = pipe::pipe()?;
        let far = receiver.into_blocking_fd()?;
        Ok((sender, Self(Mutex::new(Some(far)))))
    }

    /// The command has it.
    pub fn let_go(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    fn copy(&self) -> io::Result<Option<OwnedFd>> {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.as_ref().map(OwnedFd::try_clone).transpose()
    }
}

impl Lifeline {
    /// A new one, and the supervisor's end of it.
    pub fn new() -> io::Result<(Self, Stdio)> {
        let (near, far) = std::os::unix::net::UnixStream::pair()?;
        near.set_nonblocking(true)?;
        Ok((Self(UnixStream::from_std(near)?), Stdio::from(OwnedFd::from(far))))
    }

    /// Says a word.
    pub async fn say(&mut self, word: u8) -> io::Result<()> {
        self.0.write_all(&[word]).await
    }

    /// Sends an order, and what its command is to read.
    pub async fn send(&mut self, frame: &[u8], stdin: Option<&Stdin>) -> io::Result<()> {
        let Some(stdin) = stdin.map(Stdin::copy).transpose()?.flatten() else {
            return self.0.write_all(frame).await;
        };
        let (length, body) = frame.split_at(LENGTH.min(frame.len()));
        let socket = &self.0;
        let sent =
            socket.async_io(Interest::WRITABLE, || send_with(socket, length, &stdin)).await?;
        self.0.write_all(&length[sent..]).await?;
        self.0.write_all(body).await
    }
}

fn send_with(socket: &UnixStream, bytes: &[u8], descriptor: &OwnedFd) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let rights = [descriptor.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&rights));
    let flags = SendFlags::NOSIGNAL;
    Ok(rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)?)
}

/// Reads the next order in a supervisor, whose end is its standard input, and what its command is
/// to read; `None` when Pixir has let go.
pub fn receive() -> io::Result<Option<(Order, Option<OwnedFd>)>> {
    let mut length = [0; LENGTH];
    let (received, stdin) = receive_first(&mut length)?;
    if received == 0 || !read_exactly(&mut length[received..])? {
        return Ok(None);
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > LARGEST_ORDER {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut body = vec![0; length];
    if !read_exactly(&mut body)? {
        return Ok(None);
    }
    let order = Order::decode(&body).ok_or(io::ErrorKind::InvalidData)?;
    Ok(Some((order, stdin)))
}

fn receive_first(buffer: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    loop {
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(buffer)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        match rustix::net::recvmsg(rustix::stdio::stdin(), &mut into, &mut control, flags) {
            Ok(message) => {
                let descriptor = control.drain().find_map(|message| match message {
                    RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
                    _ => None,
                });
                return Ok((message.bytes, descriptor));
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Reads without a buffer of its own: what follows the order are words.
fn read_exactly(mut buffer: &mut [u8]) -> io::Result<bool> {
    while !buffer.is_empty() {
        match rustix::io::read(rustix::stdio::stdin(), &mut *buffer) {
            Ok(0) => return Ok(false),
            Ok(count) => buffer = &mut buffer[count..],
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(true)
}
