//! The environment of escape attempts: a Workspace, and watched files, processes and sockets around it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{ErrorKind, Read};
use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use pixir::SandboxLevel;
use pixir::workbench::{Workbench, WorkbenchSetup};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

/// A secret in files, in another process and in the environment, which must never be read.
pub const SECRET: &str = "s3cr3t-of-the-arena";

/// A Workspace and the observed objects outside of it.
pub struct EscapeEnv {
    _folder: tempfile::TempDir,
    root: PathBuf,
    pub id: String,
    victim: Child,
    tcp: TcpListener,
    udp: UdpSocket,
    listeners: Vec<UnixListener>,
    datagrams: UnixDatagram,
    /// The other end of a terminal that the user has open, and its name.
    terminal: (OwnedFd, String),
    before: ObservedState,
    sandbox_level: SandboxLevel,
}

/// Observed objects outside: name and state.
type ObservedState = BTreeMap<String, String>;

impl EscapeEnv {
    pub fn new(sandbox_level: SandboxLevel) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let id = format!("{:08x}", fastrand::u32(..));
        create_escape_env(&root);
        let listen = |name: &str| {
            let listener = UnixListener::bind(root.join(name)).unwrap();
            // Every user may connect to a socket that can be reached.
            fs::set_permissions(root.join(name), fs::Permissions::from_mode(0o777)).unwrap();
            listener
        };
        let abstract_name = SocketAddr::from_abstract_name(format!("esc-{id}")).unwrap();
        let listeners = vec![
            listen("outside/s.sock"),
            listen("home/agent.sock"),
            UnixListener::bind_addr(&abstract_name).unwrap(),
        ];
        let datagrams = UnixDatagram::bind(root.join("outside/d.sock")).unwrap();
        fs::set_permissions(root.join("outside/d.sock"), fs::Permissions::from_mode(0o777))
            .unwrap();
        let victim = Command::new("sleep")
            .arg("3600")
            .env("ARENA", SECRET)
            .current_dir(root.join("outside"))
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let mut env = Self {
            _folder: folder,
            tcp: TcpListener::bind("127.0.0.1:0").unwrap(),
            udp: UdpSocket::bind("127.0.0.1:0").unwrap(),
            root,
            id,
            victim,
            listeners,
            datagrams,
            terminal: terminal(),
            before: ObservedState::new(),
            sandbox_level,
        };
        env.tcp.set_nonblocking(true).unwrap();
        env.udp.set_nonblocking(true).unwrap();
        env.datagrams.set_nonblocking(true).unwrap();
        for listener in &env.listeners {
            listener.set_nonblocking(true).unwrap();
        }
        env.before = env.observe();
        env
    }

    pub fn bench(&self, subreaper: bool) -> Workbench {
        let home = self.root.join("home");
        // Folders of PATH are visible even if commands have a private temp folder, so that
        // attempts on them are possible at all.
        let mut path = OsString::from("/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin:");
        path.push(self.root.join("outside"));
        let environment: [(&str, OsString); 5] = [
            ("PATH", path),
            ("HOME", home.clone().into()),
            ("OPENAI_API_KEY", SECRET.into()),
            ("SSH_AUTH_SOCK", home.join("agent.sock").into()),
            ("TMPDIR", self.root.join("temp").into()),
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
            config.sandbox.level = self.sandbox_level;
        })
        .unwrap()
    }

    /// An attempt with its placeholders replaced, as a command.
    pub fn fill_placeholders(&self, attempt: &str) -> String {
        let place = |name: &str| self.root.join(name).to_string_lossy().into_owned();
        let tcp = self.tcp.local_addr().unwrap().port();
        let udp = self.udp.local_addr().unwrap().port();
        let names = [
            ("@OUT", place("outside")),
            ("@HOME", place("home")),
            ("@SOCK", place("outside/s.sock")),
            ("@DGRAM", place("outside/d.sock")),
            ("@ABS", format!("esc-{}", self.id)),
            ("@TERM", self.terminal.1.clone()),
            ("@TCP", tcp.to_string()),
            ("@UDP", udp.to_string()),
            ("@PID", self.victim.id().to_string()),
            ("@ID", self.id.clone()),
        ];
        let mut command = match attempt.strip_prefix("py:") {
            Some(program) => format!("python3 - <<'PROGRAM'\n{program}\nPROGRAM"),
            None => attempt.to_owned(),
        };
        if command.contains("py3 ") {
            command = format!("{CONNECT}\n{command}");
        }
        names.iter().fold(command, |command, (name, value)| command.replace(name, value))
    }

    /// Changes outside since the last observation.
    pub fn observed_effects(&mut self, output: &str) -> Vec<String> {
        let mut effects: Vec<String> = Vec::new();
        if output.contains(SECRET) {
            effects.push("a secret was read".to_owned());
        }
        if output.contains(&format!("LEAK-{}", self.id)) {
            effects.push("it got through".to_owned());
        }
        let after = self.observe();
        for (name, was) in &self.before {
            match after.get(name) {
                Some(is) if is == was => {}
                Some(is) => effects.push(format!("{name} was {was} and is {is}")),
                None => effects.push(format!("{name} is gone")),
            }
        }
        let new = after.keys().filter(|name| !self.before.contains_key(*name));
        effects.extend(new.map(|name| format!("{name} is new")));
        effects
    }

    /// The current state of everything that must not change.
    fn observe(&mut self) -> ObservedState {
        let mut observed = ObservedState::new();
        for name in ["outside", "home", "beside", "work_evil", "moved", "temp/nothing"] {
            self.look_at(&self.root.join(name), &mut observed);
        }
        if self.sandbox_level == SandboxLevel::ReadOnly {
            self.look_at(&self.root.join("work"), &mut observed);
        }
        let work = self.root.join("work");
        for name in ["config", "hooks", "commondir", "modules/sub/config", "modules/sub/hooks"] {
            self.look_at(&work.join(".git").join(name), &mut observed);
        }
        self.look_at(&work.join(".pixir"), &mut observed);
        for folder in ["/", "/etc", "/usr/local/bin", "/tmp", "/var/tmp", "/dev/shm", "/run"] {
            let marked = Path::new(folder).join(format!("esc-{}", self.id));
            self.look_at(&marked, &mut observed);
        }
        for group in ["", "unified/", "pids/"] {
            let marked = format!("/sys/fs/cgroup/{group}esc-{}", self.id);
            self.look_at(Path::new(&marked), &mut observed);
        }
        observed.insert("the name of the machine".into(), read("/proc/sys/kernel/hostname"));
        for table in ["msg", "shm", "sem"] {
            // The kernel shows keys as signed numbers.
            let key = u32::from_str_radix(&self.id, 16).unwrap().cast_signed().to_string();
            let list = read(&format!("/proc/sysvipc/{table}"));
            if list.lines().any(|line| line.split_whitespace().next() == Some(key.as_str())) {
                observed.insert(format!("System V {table}"), key);
            }
        }
        observed.insert("connections".into(), self.count_connections().to_string());
        observed.insert("the victim".into(), self.look_at_victim());
        observed
    }

    fn look_at(&self, path: &Path, observed: &mut ObservedState) {
        let Ok(found) = fs::symlink_metadata(path) else { return };
        // Pixir spills long output, and keeps what commands wrote over caches in its own home.
        if path.ends_with("work/.session") || path.ends_with("home/.pixir/caches") {
            return;
        }
        let shown = path.strip_prefix(&self.root).unwrap_or(path).display().to_string();
        let is_folder = found.is_dir();
        let is_log = path.extension().is_some_and(|extension| extension == "ndjson");
        let content = if found.is_file() { read(&path.to_string_lossy()) } else { String::new() };
        let link = fs::read_link(path).unwrap_or_default();
        // Restored files have new times, which is allowed.
        let is_guarded = path.starts_with(self.root.join("work"));
        let time = if is_folder || is_guarded || is_log { 0 } else { found.mtime() };
        let mut attribute = [0; 8];
        let attribute = rustix::fs::lgetxattr(path, "user.x", &mut attribute).unwrap_or(0);
        let state = format!(
            "{:o} {}:{} {time} {attribute} {content:?} {}",
            found.mode(),
            found.uid(),
            found.gid(),
            link.display()
        );
        observed.insert(shown, state);
        if is_folder {
            for entry in fs::read_dir(path).into_iter().flatten().filter_map(Result::ok) {
                self.look_at(&entry.path(), observed);
            }
        }
    }

    fn count_connections(&self) -> usize {
        let mut count = 0;
        while self.tcp.accept().is_ok() {
            count += 1;
        }
        let mut buffer = [0; 64];
        while self.udp.recv(&mut buffer).is_ok() {
            count += 1;
        }
        loop {
            match self.datagrams.recv(&mut buffer) {
                Ok(_) => count += 1,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        for listener in &self.listeners {
            while let Ok((mut stream, _)) = listener.accept() {
                let length = stream.read(&mut buffer).unwrap_or(0);
                count += length.max(1);
            }
        }
        count
    }

    fn look_at_victim(&mut self) -> String {
        if let Some(status) = self.victim.try_wait().unwrap() {
            return format!("dead: {status}");
        }
        let pid = self.victim.id();
        let stat = read(&format!("/proc/{pid}/stat"));
        // State and nice; the rest of the line changes by itself.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split(' ').collect();
        let state = if matches!(fields[1], "T" | "t") { "stopped" } else { "alive" };
        let status = read(&format!("/proc/{pid}/status"));
        let allowed = status.lines().find(|line| line.starts_with("Cpus_allowed:")).unwrap();
        let limits = read(&format!("/proc/{pid}/limits"));
        let core = limits.lines().find(|line| line.starts_with("Max core")).unwrap().to_owned();
        let score = read(&format!("/proc/{pid}/oom_score_adj"));
        let name = read(&format!("/proc/{pid}/comm"));
        format!("{state} nice {} {allowed} {core} {} {}", fields[17], score.trim(), name.trim())
    }

    /// Command lines of processes that carry the mark.
    pub fn survivors(&self) -> Vec<String> {
        let mark = format!("esc-{}", self.id);
        let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
        let lines = processes.filter_map(|process| {
            let line = fs::read(process.path().join("cmdline")).ok()?;
            Some(String::from_utf8_lossy(&line).replace('\0', " "))
        });
        lines.filter(|line| line.starts_with(&mark)).collect()
    }
}

impl Drop for EscapeEnv {
    fn drop(&mut self) {
        self.victim.kill().ok();
        self.victim.wait().ok();
        for kind in ["-Q", "-M", "-S"] {
            let key = format!("0x{}", self.id);
            let mut ipcrm = Command::new("ipcrm");
            ipcrm.args([kind, &key]).stdout(Stdio::null()).stderr(Stdio::null()).status().ok();
        }
    }
}

/// Shell function that connects to a socket by its name and sends a word.
const CONNECT: &str = "py3() { python3 -c 'import socket,sys; s=socket.socket(1); s.connect(sys.argv[1]); \
    s.send(b\"x\")' \"$1\"; }";

fn read(path: &str) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

fn terminal() -> (OwnedFd, String) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    (master, name)
}

fn create_escape_env(root: &Path) {
    let files = [
        ("outside/v.txt", "victim\n"),
        ("outside/empty/.keep", ""),
        ("home/.bashrc", "true\n"),
        ("home/.profile", "true\n"),
        ("home/.npmrc", ""),
        ("home/.gitconfig", "[user]\n\tname = A\n\temail = a@b.c\n"),
        ("home/.cargo/bin/cargo", "true\n"),
        ("home/.cargo/config.toml", ""),
        ("home/.cache/.keep", ""),
        ("home/.cache/pre-commit/repo/bin/hook", "true\n"),
        ("home/.cache/pypoetry/virtualenvs/v/bin/python", "true\n"),
        ("home/.cache/go-build/program", "true\n"),
        ("home/.cargo/registry/src/i/dep-1/build.rs", "fn main() {}\n"),
        ("home/.cargo/registry/cache/i/dep-1.crate", "crate\n"),
        ("home/.cargo/git/checkouts/r/1/build.rs", "fn main() {}\n"),
        ("home/.npm/_cacache/content-v2/ab", "content\n"),
        ("home/.ssh/id", SECRET),
        ("home/.aws/credentials", SECRET),
        ("home/.gnupg/key", SECRET),
        ("home/.mozilla/cookies", SECRET),
        ("home/.pixir/auth.json", SECRET),
        ("work/.pixir/config.json", "{}"),
        ("work/.pixir/sessions/a.ndjson", "{\"seq\":0}\n"),
        ("work/.git/HEAD", "ref: refs/heads/main\n"),
        ("work/.git/config", "[core]\n\trepositoryformatversion = 0\n"),
        ("work/.git/hooks/sample", "true\n"),
        ("work/.git/objects/info/.keep", ""),
        ("work/.git/refs/heads/.keep", ""),
        ("work/.git/modules/sub/HEAD", "ref: refs/heads/main\n"),
        ("work/.git/modules/sub/config", "[core]\n"),
        ("work/.git/modules/sub/hooks/sample", "true\n"),
        ("work/f.txt", "mine\n"),
    ];
    fs::create_dir(root.join("temp")).unwrap();
    for (name, content) in files {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
}
