//! The lifeline: the socket between Pixir and a supervisor, for orders, words and descriptors.
//!
//! A socket and not a pipe, because an order may bring along what the command reads, the far end of
//! a pipe that Pixir writes to, and where a service tells its errors. The supervisor hands them on
//! and keeps nothing of them.

use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

use super::order::{LENGTH, Order, decode_fields, frame_length};

/// Pixir's end. Closing it, also by dropping it, kills what the supervisor watches.
#[derive(Debug)]
pub struct Lifeline(UnixStream);

/// What a command reads, and where its errors go, on the way there. Pixir lets go of it once the
/// command has it, so that writing fails when nobody can read any more.
#[derive(Debug)]
pub struct Stdin(Mutex<Vec<OwnedFd>>);

impl Stdin {
    /// A pipe to a command: what Pixir writes to, and what the command reads.
    pub fn piped() -> io::Result<(pipe::Sender, Self)> {
        let (sender, receiver) = pipe::pipe()?;
        let far = receiver.into_blocking_fd()?;
        Ok((sender, Self(Mutex::new(vec![far]))))
    }

    /// The same, and a pipe for what it says on standard error.
    pub fn with_errors() -> io::Result<(pipe::Sender, pipe::Receiver, Self)> {
        let (sender, receiver) = pipe::pipe()?;
        let (far_errors, errors) = pipe::pipe()?;
        let far = vec![receiver.into_blocking_fd()?, far_errors.into_blocking_fd()?];
        Ok((sender, errors, Self(Mutex::new(far))))
    }

    /// The command has it.
    pub fn let_go(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn copies(&self) -> io::Result<Vec<OwnedFd>> {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.iter().map(OwnedFd::try_clone).collect()
    }
}

/// What came along with an order.
#[derive(Debug, Default)]
pub struct Given {
    /// What the command reads.
    pub stdin: Option<OwnedFd>,
    /// Where its errors go; with its output where nothing was given.
    pub errors: Option<OwnedFd>,
}

impl Lifeline {
    /// Makes one of Pixir's end, when the supervisor has been told what to build.
    pub fn new(near: std::os::unix::net::UnixStream) -> io::Result<Self> {
        near.set_nonblocking(true)?;
        Ok(Self(UnixStream::from_std(near)?))
    }

    /// Closes both directions, so that the supervisor ends.
    pub fn close(&self) {
        rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both).ok();
    }

    /// Says a word.
    pub async fn say(&mut self, word: u8) -> io::Result<()> {
        self.0.write_all(&[word]).await
    }

    /// Sends an order, and what its command is to read.
    pub async fn send(&mut self, frame: &[u8], stdin: Option<&Stdin>) -> io::Result<()> {
        let given = stdin.map(Stdin::copies).transpose()?.unwrap_or_default();
        if given.is_empty() {
            return self.0.write_all(frame).await;
        }
        let (length, body) = frame.split_at(LENGTH.min(frame.len()));
        let socket = &self.0;
        let sent =
            socket.async_io(Interest::WRITABLE, || send_with(socket, length, &given)).await?;
        self.0.write_all(&length[sent..]).await?;
        self.0.write_all(body).await
    }
}

fn send_with(socket: &UnixStream, bytes: &[u8], given: &[OwnedFd]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let rights: Vec<BorrowedFd<'_>> = given.iter().map(AsFd::as_fd).collect();
    control.push(SendAncillaryMessage::ScmRights(&rights));
    let flags = SendFlags::NOSIGNAL;
    Ok(rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)?)
}

/// Reads the next order in a supervisor, whose end is its standard input, and what came along with
/// it; `None` when Pixir has let go.
pub fn receive() -> io::Result<Option<(Order, Given)>> {
    let mut length = [0; LENGTH];
    let (received, given) = receive_first(&mut length)?;
    if received == 0 || !read_exactly(&mut length[received..])? {
        return Ok(None);
    }
    let mut body = vec![0; frame_length(length)?];
    if !read_exactly(&mut body)? {
        return Ok(None);
    }
    let order = Order::decode(&body).ok_or(io::ErrorKind::InvalidData)?;
    Ok(Some((order, given)))
}

/// Reads the frame with which a supervisor learns what it is to build; `None` when Pixir has let go.
pub fn receive_setup() -> io::Result<Option<Vec<OsString>>> {
    let mut length = [0; LENGTH];
    if !read_exactly(&mut length)? {
        return Ok(None);
    }
    let mut body = vec![0; frame_length(length)?];
    if !read_exactly(&mut body)? {
        return Ok(None);
    }
    decode_fields(&body).map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn receive_first(buffer: &mut [u8]) -> io::Result<(usize, Given)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    loop {
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(buffer)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        match rustix::net::recvmsg(rustix::stdio::stdin(), &mut into, &mut control, flags) {
            Ok(message) => {
                let mut given = control.drain().filter_map(|message| match message {
                    RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
                    _ => None,
                });
                let mut given = given.by_ref().flatten();
                let given = Given { stdin: given.next(), errors: given.next() };
                return Ok((message.bytes, given));
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
