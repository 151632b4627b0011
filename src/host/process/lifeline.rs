//! The lifeline: the socket from Pixir to a supervisor, for requests, control bytes and descriptors.
//!
//! A socket and not a pipe, because a request may carry the descriptors for the standard input of a
//! command and the standard error of a service. The supervisor passes them on and closes its copies.

use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

use crate::host::process::protocol::{
    LENGTH_PREFIX, SupervisorRequest, decode_fields, frame_length,
};

/// Pixir's end of the lifeline. Closing or dropping it kills the processes that the supervisor watches.
#[derive(Debug)]
pub struct Lifeline(UnixStream);

/// The far ends of a command's standard input and, for a service, standard error. Pixir closes its copies
/// once the command has them, so that writing fails as soon as no process can read any more.
#[derive(Debug)]
pub struct CommandPipes(Mutex<Vec<OwnedFd>>);

impl CommandPipes {
    /// A pipe for standard input: the end that Pixir writes to, and the far end.
    pub fn with_stdin() -> io::Result<(pipe::Sender, Self)> {
        let (sender, receiver) = pipe::pipe()?;
        let far = receiver.into_blocking_fd()?;
        Ok((sender, Self(Mutex::new(vec![far]))))
    }

    /// Pipes for standard input and standard error.
    pub fn with_stdin_and_stderr() -> io::Result<(pipe::Sender, pipe::Receiver, Self)> {
        let (sender, receiver) = pipe::pipe()?;
        let (far_errors, errors) = pipe::pipe()?;
        let far = vec![receiver.into_blocking_fd()?, far_errors.into_blocking_fd()?];
        Ok((sender, errors, Self(Mutex::new(far))))
    }

    /// Closes Pixir's copies of the far ends, once the command has them.
    pub fn close(&self) {
        self.0.lock().clear();
    }

    fn duplicate(&self) -> io::Result<Vec<OwnedFd>> {
        let held = self.0.lock();
        held.iter().map(OwnedFd::try_clone).collect()
    }
}

/// The descriptors received with a request.
#[derive(Debug, Default)]
pub struct ReceivedDescriptors {
    /// The standard input of the command.
    pub stdin: Option<OwnedFd>,
    /// The standard error of the command; `None` to share the pipe of standard output.
    pub stderr: Option<OwnedFd>,
}

impl Lifeline {
    /// Wraps Pixir's end, after the setup frame was sent.
    pub fn new(near: std::os::unix::net::UnixStream) -> io::Result<Self> {
        near.set_nonblocking(true)?;
        Ok(Self(UnixStream::from_std(near)?))
    }

    /// Closes both directions, so that the supervisor ends.
    pub fn close(&self) {
        rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both).ok();
    }

    /// Sends a control byte, such as `TERMINATE`.
    pub async fn send_control(&mut self, word: u8) -> io::Result<()> {
        self.0.write_all(&[word]).await
    }

    /// Sends an encoded request, with the descriptors of `stdin`.
    pub async fn send_request(
        &mut self,
        frame: &[u8],
        stdin: Option<&CommandPipes>,
    ) -> io::Result<()> {
        let fds = stdin.map(CommandPipes::duplicate).transpose()?.unwrap_or_default();
        if fds.is_empty() {
            return self.0.write_all(frame).await;
        }
        let (length, body) = frame.split_at(LENGTH_PREFIX.min(frame.len()));
        let socket = &self.0;
        let sent = socket
            .async_io(Interest::WRITABLE, || send_with_descriptors(socket, length, &fds))
            .await?;
        self.0.write_all(&length[sent..]).await?;
        self.0.write_all(body).await
    }
}

fn send_with_descriptors(socket: &UnixStream, bytes: &[u8], fds: &[OwnedFd]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let rights: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    control.push(SendAncillaryMessage::ScmRights(&rights));
    let flags = SendFlags::NOSIGNAL;
    Ok(rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)?)
}

/// Reads the next request and its descriptors in a supervisor, whose end is its standard input;
/// `None` if Pixir has closed the lifeline.
pub fn receive_request() -> io::Result<Option<(SupervisorRequest, ReceivedDescriptors)>> {
    let mut length = [0; LENGTH_PREFIX];
    let (received, fds) = receive_with_descriptors(&mut length)?;
    if received == 0 || !read_exactly(&mut length[received..])? {
        return Ok(None);
    }
    let mut body = vec![0; frame_length(length)?];
    if !read_exactly(&mut body)? {
        return Ok(None);
    }
    let request = SupervisorRequest::decode(&body).ok_or(io::ErrorKind::InvalidData)?;
    Ok(Some((request, fds)))
}

/// Reads the setup frame of a supervisor; `None` if Pixir has closed the lifeline.
pub fn receive_setup() -> io::Result<Option<Vec<OsString>>> {
    let mut length = [0; LENGTH_PREFIX];
    if !read_exactly(&mut length)? {
        return Ok(None);
    }
    let mut body = vec![0; frame_length(length)?];
    if !read_exactly(&mut body)? {
        return Ok(None);
    }
    decode_fields(&body).map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn receive_with_descriptors(buffer: &mut [u8]) -> io::Result<(usize, ReceivedDescriptors)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    loop {
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(buffer)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        match rustix::net::recvmsg(rustix::stdio::stdin(), &mut into, &mut control, flags) {
            Ok(message) => {
                let mut fds = control.drain().filter_map(|message| match message {
                    RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
                    _ => None,
                });
                let mut fds = fds.by_ref().flatten();
                let fds = ReceivedDescriptors { stdin: fds.next(), stderr: fds.next() };
                return Ok((message.bytes, fds));
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Fills the buffer without reading ahead, because control bytes follow the request. False at the end
/// of the stream.
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
