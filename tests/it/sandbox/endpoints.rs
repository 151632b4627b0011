//! Endpoints: programs outside that listen on sockets and named pipes, and a folder tree in which a
//! command is surrounded by them. Each records the messages that reach it.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pixir::SandboxLevel;
use pixir::workbench::{Workbench, WorkbenchSetup};
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::{Value, json};

/// Listeners: name in attempts, and path below the folder of the environment.
const STREAMS: &[(&str, &str)] = &[
    ("docker", "home/.docker/run/docker.sock"),
    ("containerd", "outside/run/containerd/containerd.sock"),
    ("ssh-agent", "home/.local/share/ssh/agent.sock"),
    ("gpg-agent", "home/.local/share/gnupg/S.gpg-agent"),
    ("dbus", "outside/run/user/bus"),
    ("X11", "outside/.X11-unix/X0"),
    ("Wayland", "outside/run/user/wayland-0"),
    ("newline", "outside/odd\nname/a\nb.sock"),
];
const DATAGRAMS: &[(&str, &str)] =
    &[("journald", "outside/run/systemd/journal/socket"), ("syslog", "home/log.sock")];
const SEQUENCED: &[(&str, &str)] = &[("udev", "outside/run/udev/control")];
/// Listeners that are bound under another name than the one used to connect.
const DISGUISED: &[&str] = &["renamed", "relative", "hard-linked", "linked"];
const PIPES: &[(&str, &str)] = &[("initctl", "home/initctl"), ("outside pipe", "outside/pipe")];

/// The path at which a test may mount the folder of the environment again.
pub const AGAIN: &str = "mounted/again";

/// Spellings of a socket name; each is a function of `PROGRAM`.
const SPELLINGS: &[&str] = &[
    "absolute",
    "dots",
    "from its folder",
    "through a link",
    "through a link to its folder",
    "by a descriptor of its folder",
    "by the folder of the process",
    "by the root of the process",
    "by its own descriptor",
];

/// A folder that the sandbox does not replace. The name of a socket has at most 108 bytes, so it must
/// not be far down.
pub fn parent() -> PathBuf {
    let usual = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    if usual.as_os_str().len() < 40 { usual } else { std::env::temp_dir() }
}

enum SocketListener {
    Stream(UnixListener),
    Datagram(UnixDatagram),
    Sequenced(OwnedFd),
    Pipe(fs::File),
}

/// A Workspace with endpoints around it.
pub struct EndpointEnv {
    _folder: tempfile::TempDir,
    root: PathBuf,
    listeners: Vec<SocketListener>,
    attempts: Vec<Value>,
}

impl EndpointEnv {
    pub fn below(parent: &Path) -> Self {
        let folder = tempfile::tempdir_in(parent).unwrap();
        let root = folder.path().canonicalize().unwrap();
        for name in ["work", "home", "outside", "temp"] {
            fs::create_dir(root.join(name)).unwrap();
        }
        let mut own = Self { _folder: folder, root, listeners: Vec::new(), attempts: Vec::new() };
        own.listen();
        own.disguise();
        own.listen_to_abstract_names();
        own.listen_to_pipes();
        own.find_again(&parent.join(AGAIN));
        own
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    fn listen(&mut self) {
        for (name, place) in STREAMS {
            self.stream(name, place);
        }
        for (name, place) in DATAGRAMS {
            let path = self.place(place);
            let socket = UnixDatagram::bind(&path).unwrap();
            socket.set_nonblocking(true).unwrap();
            open_to_all(&path);
            self.listeners.push(SocketListener::Datagram(socket));
            self.attempt_all_spellings(name, place, "datagram");
            self.attempt(name, "a pair", place, "datagram");
            self.attempt(name, "a connected pair", place, "datagram");
            self.attempt(name, "a raw pair", place, "datagram");
        }
        for (name, place) in SEQUENCED {
            let path = self.place(place);
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let kind = SocketType::SEQPACKET;
            let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
            rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
            rustix::net::listen(&socket, 64).unwrap();
            open_to_all(&path);
            self.listeners.push(SocketListener::Sequenced(socket));
            self.attempt_all_spellings(name, place, "sequenced");
        }
    }

    /// Adds a stream listener, and all attempts to reach it.
    pub fn stream(&mut self, name: &str, place: &str) {
        self.bind(place);
        self.attempt_all_spellings(name, place, "stream");
    }

    /// Adds a stream listener.
    pub fn bind(&mut self, place: &str) {
        let path = self.place(place);
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        open_to_all(&path);
        self.listeners.push(SocketListener::Stream(listener));
    }

    fn disguise(&mut self) {
        for name in DISGUISED {
            let place = format!("outside/{name}.sock");
            match *name {
                "renamed" => {
                    self.bind("outside/before.sock");
                    fs::rename(self.root.join("outside/before.sock"), self.root.join(&place))
                        .unwrap();
                }
                // The kernel lists a relative name, which leads nowhere for other processes.
                "relative" => {
                    let folder = fs::File::open(self.root.join("outside")).unwrap();
                    let number = std::os::fd::AsRawFd::as_raw_fd(&folder);
                    let name = format!("/proc/self/fd/{number}/relative.sock");
                    let listener = UnixListener::bind(name).unwrap();
                    listener.set_nonblocking(true).unwrap();
                    open_to_all(&self.root.join(&place));
                    self.listeners.push(SocketListener::Stream(listener));
                }
                "hard-linked" => {
                    self.bind("outside/first.sock");
                    fs::hard_link(self.root.join("outside/first.sock"), self.root.join(&place))
                        .unwrap();
                }
                _ => {
                    self.bind("outside/target.sock");
                    symlink("target.sock", self.root.join(&place)).unwrap();
                }
            }
            self.attempt_all_spellings(name, &place, "stream");
        }
        // Each of these removes its socket, so it comes last.
        for (name, spelling) in
            [("to move", "moved here"), ("to link", "linked here"), ("to swap", "swapped here")]
        {
            let place = format!("outside/{name}.sock");
            self.bind(&place);
            self.attempt(name, spelling, &place, "stream");
        }
    }

    fn listen_to_abstract_names(&mut self) {
        for name in ["X11", "dbus", "agent"] {
            let abstract_name = format!("{name}-{:08x}", fastrand::u32(..));
            let address = SocketAddr::from_abstract_name(&abstract_name).unwrap();
            let listener = UnixListener::bind_addr(&address).unwrap();
            listener.set_nonblocking(true).unwrap();
            self.listeners.push(SocketListener::Stream(listener));
            self.attempts.push(json!({
                "name": format!("{name}: abstract"), "spelling": "abstract",
                "path": abstract_name, "kind": "stream"
            }));
        }
        let abstract_name = format!("journal-{:08x}", fastrand::u32(..));
        let address = SocketAddr::from_abstract_name(&abstract_name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        socket.set_nonblocking(true).unwrap();
        self.listeners.push(SocketListener::Datagram(socket));
        for spelling in ["abstract", "abstract from a pair"] {
            self.attempts.push(json!({
                "name": format!("journald: {spelling}"), "spelling": spelling,
                "path": abstract_name, "kind": "datagram"
            }));
        }
    }

    fn listen_to_pipes(&mut self) {
        for (name, place) in PIPES {
            let path = self.place(place);
            rustix::fs::mkfifoat(rustix::fs::CWD, &path, Mode::from_raw_mode(0o666)).unwrap();
            open_to_all(&path);
            let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let pipe = rustix::fs::open(&path, flags, Mode::empty()).unwrap();
            self.listeners.push(SocketListener::Pipe(pipe.into()));
            for spelling in ["pipe", "pipe for both", "pipe through a link"] {
                self.attempt(name, spelling, place, "pipe");
            }
        }
    }

    /// Adds attempts on the same sockets where the folder is mounted at another path.
    fn find_again(&mut self, mounted: &Path) {
        let root = mounted.join(self.root.file_name().unwrap());
        if !root.is_dir() {
            return;
        }
        for (list, kind) in [(STREAMS, "stream"), (DATAGRAMS, "datagram")] {
            for (name, place) in list {
                let place = root.join(place).to_string_lossy().into_owned();
                self.attempt(&format!("{name} mounted"), "from its folder", &place, kind);
            }
        }
    }

    /// A path of a socket; the folders on the way are made.
    fn place(&self, place: &str) -> PathBuf {
        let path = self.root.join(place);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }

    fn attempt_all_spellings(&mut self, name: &str, place: &str, kind: &str) {
        for spelling in SPELLINGS {
            self.attempt(name, spelling, place, kind);
        }
    }

    fn attempt(&mut self, name: &str, spelling: &str, place: &str, kind: &str) {
        self.attempts.push(json!({
            "name": format!("{name}: {spelling}"), "spelling": spelling,
            "path": self.root.join(place), "kind": kind
        }));
    }

    /// The names of all attempts.
    pub fn names(&self) -> BTreeSet<String> {
        self.attempts.iter().map(|attempt| attempt["name"].as_str().unwrap().to_owned()).collect()
    }

    /// One command that makes every attempt and prints its result.
    pub fn command(&self) -> String {
        let attempts = serde_json::to_string(&self.attempts).unwrap();
        format!("python3 - <<'PROGRAM'\nATTEMPTS = r'''{attempts}'''\n{PROGRAM}\nPROGRAM")
    }

    /// The messages that reached any listener since the last call.
    pub fn connected_endpoints(&self) -> BTreeSet<String> {
        let mut reached = BTreeSet::new();
        for listener in &self.listeners {
            reached.extend(read_listener(listener));
        }
        reached
    }

    pub fn bench(&self, sandbox_level: SandboxLevel, subreaper: bool) -> Workbench {
        let home = self.root.join("home");
        let environment = [
            ("PATH", "/usr/local/bin:/usr/bin:/bin".into()),
            ("HOME", home.clone().into_os_string()),
            ("SSH_AUTH_SOCK", home.join(".local/share/ssh/agent.sock").into_os_string()),
            ("TMPDIR", self.root.join("temp").into_os_string()),
        ];
        let setup = WorkbenchSetup {
            own_binary: env!("CARGO_BIN_EXE_pixir").into(),
            folder: &self.root.join("work"),
            environment: environment.map(|(name, value)| (name.into(), value)).into(),
            subreaper,
            drain: Duration::from_millis(20),
            grace: Duration::from_millis(50),
        };
        Workbench::with_config(setup, |config| {
            config.home = pixir::Home::new(home.join(".pixir"));
            config.sandbox.level = sandbox_level;
        })
        .unwrap()
    }
}

/// Permits every user to connect, so that only the sandbox prevents it.
fn open_to_all(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
}

/// All messages that wait at one listener. Messages end with a line break.
fn read_listener(listener: &SocketListener) -> Vec<String> {
    let mut words = Vec::new();
    let mut buffer = [0; 512];
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match listener {
        SocketListener::Stream(socket) => {
            while let Ok((mut stream, _)) = socket.accept() {
                stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
                let mut bytes = Vec::new();
                stream.read_to_end(&mut bytes).ok();
                words.push(text(&bytes));
            }
        }
        SocketListener::Datagram(socket) => {
            while let Ok(count) = socket.recv(&mut buffer) {
                words.push(text(&buffer[..count]));
            }
        }
        SocketListener::Sequenced(socket) => {
            while let Ok(stream) = rustix::net::accept(socket) {
                let count = rustix::io::read(&stream, &mut buffer).unwrap_or(0);
                words.push(text(&buffer[..count]));
            }
        }
        SocketListener::Pipe(pipe) => {
            let mut bytes = Vec::new();
            let mut pipe = pipe;
            pipe.read_to_end(&mut bytes).ok();
            words.extend(text(&bytes).lines().map(str::to_owned));
        }
    }
    // A connection without a message is an effect as well.
    words.into_iter().map(|word| word.trim_end_matches('\n').to_owned()).collect()
}

/// The Python program that makes every attempt; each sends its own name.
const PROGRAM: &str = r"
import json, os, socket
KINDS = {'stream': socket.SOCK_STREAM, 'datagram': socket.SOCK_DGRAM, 'sequenced': socket.SOCK_SEQPACKET}
here = os.getcwd()
try:
    os.mkdir('own')
    writable = here
except OSError:
    writable = os.environ['TMPDIR']
count = 0

def fresh():
    global count
    count += 1
    # In a read-only Session nothing else can be written.
    return os.path.relpath(os.path.join(writable, 'n%d' % count))

def say(path, kind, word):
    s = socket.socket(socket.AF_UNIX, KINDS[kind])
    s.connect(path)
    s.send(word)
    s.close()

def from_folder(path, kind, word):
    os.chdir(os.path.dirname(path))
    say(os.path.basename(path), kind, word)

def through_link(path, kind, word):
    link = fresh()
    os.symlink(path, link)
    say(link, kind, word)

def through_link_to_folder(path, kind, word):
    link = fresh()
    os.symlink(os.path.dirname(path), link)
    say(link + '/' + os.path.basename(path), kind, word)

def by_folder_descriptor(path, kind, word):
    fd = os.open(os.path.dirname(path), os.O_PATH)
    say('/proc/self/fd/%d/%s' % (fd, os.path.basename(path)), kind, word)

def by_process_folder(path, kind, word):
    os.chdir(os.path.dirname(path))
    say('/proc/self/cwd/' + os.path.basename(path), kind, word)

def by_process_root(path, kind, word):
    # The name of a socket has at most 108 bytes.
    fd = os.open('/proc/%d/root%s' % (os.getpid(), os.path.dirname(path)), os.O_PATH)
    say('/proc/self/fd/%d/%s' % (fd, os.path.basename(path)), kind, word)

def by_own_descriptor(path, kind, word):
    fd = os.open(path, os.O_PATH)
    say('/proc/self/fd/%d' % fd, kind, word)

def by_pair(path, kind, word):
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    a.sendto(word, path)

def by_connected_pair(path, kind, word):
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    a.connect(path)
    a.send(word)

def by_raw_pair(path, kind, word):
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_RAW)
    a.sendmsg([word], [], 0, path)

def moved(path, kind, word):
    name = fresh()
    os.rename(path, name)
    say(name, kind, word)

def linked(path, kind, word):
    name = fresh()
    os.link(path, name)
    say(name, kind, word)

def swapped(path, kind, word):
    name = fresh()
    open(name, 'w').close()
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, path.encode(), -100, name.encode(), 2) != 0:
        raise OSError(ctypes.get_errno(), 'renameat2')
    say(name, kind, word)

def abstract(path, kind, word):
    say(b'\0' + path.encode(), kind, word)

def abstract_by_pair(path, kind, word):
    by_pair(b'\0' + path.encode(), kind, word)

def pipe(path, kind, word, flags=os.O_WRONLY):
    fd = os.open(path, flags | os.O_NONBLOCK)
    os.write(fd, word)

def pipe_through_link(path, kind, word):
    link = fresh()
    os.symlink(path, link)
    pipe(link, kind, word)

WAYS = {
    'absolute': say,
    'dots': lambda p, k, w: say(os.path.relpath(p), k, w),
    'from its folder': from_folder,
    'through a link': through_link,
    'through a link to its folder': through_link_to_folder,
    'by a descriptor of its folder': by_folder_descriptor,
    'by the folder of the process': by_process_folder,
    'by the root of the process': by_process_root,
    'by its own descriptor': by_own_descriptor,
    'a pair': by_pair,
    'a connected pair': by_connected_pair,
    'a raw pair': by_raw_pair,
    'moved here': moved,
    'linked here': linked,
    'swapped here': swapped,
    'abstract': abstract,
    'abstract from a pair': abstract_by_pair,
    'pipe': pipe,
    'pipe for both': lambda p, k, w: pipe(p, k, w, os.O_RDWR),
    'pipe through a link': pipe_through_link,
}

done = 0
# Strings of JSON, in which a line break is written out.
for attempt in json.loads(ATTEMPTS):
    os.chdir(here)
    try:
        WAYS[attempt['spelling']](attempt['path'], attempt['kind'], attempt['name'].encode() + b'\n')
    except OSError as error:
        print(attempt['name'], error)
    done += 1
print('made', done, 'attempts')
";
