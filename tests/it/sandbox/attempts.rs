//! The table of escape attempts: name and command of each.
//!
//! `@OUT` is a folder outside, `@HOME` the user's home, `@PID` a process of the user, `@SOCK` and
//! `@DGRAM` sockets with names, `@ABS` an abstract one, `@TERM` a terminal of the user, `@TCP` and `@UDP` ports on the loopback, `@ID` a
//! mark of this run. A command that reads what it must not prints it, or says `LEAK-@ID`. A line that begins
//! with `py:` is a program.

use super::cache_attempts::CACHES;

/// One attempt: its name and its command.
pub type EscapeAttempt = (&'static str, &'static str);

/// A group of attempts with a common title.
pub type EscapeGroup = (&'static str, &'static [EscapeAttempt]);

/// Attempts whose effect only namespaces prevent; at level `partial` they are known exceptions.
pub const ONLY_FULL: &[&str] = &[
    "touch an old file",
    "touch with a date",
    "times by utime",
    "times through a read descriptor",
    "mode by chmod",
    "mode by fchmodat",
    "mode through a read descriptor",
    "mode of a folder",
    "owner by chown",
    "group by chgrp",
    "attribute by setfattr",
    "attribute of a cached file",
    "flags of a file",
    "append to a Log",
    "nice of another process",
    "affinity of another process",
    "mode of a file in the home",
    "mode through a link",
];

/// The attempts of `ONLY_FULL` that also have an effect in a read-only Session.
pub const ONLY_FULL_READ_ONLY: &[&str] =
    &["nice of another process", "affinity of another process"];

pub const TABLE: &[EscapeGroup] = &[
    ("paths", PATHS),
    ("tools with output flags", OUTPUTS),
    ("tools that run others", RUNNERS),
    ("links and races", LINKS),
    ("the home", HOME),
    ("package caches", CACHES),
    ("Pixir's state", STATE),
    ("git", GIT),
    ("modes, owners and times", MODES),
    ("credentials", CREDENTIALS),
    ("other processes and /proc", PROCESSES),
    ("descriptors", DESCRIPTORS),
    ("the network", NETWORK),
    ("sockets with names", SOCKETS),
    ("mounts and namespaces", MOUNTS),
    ("rights", RIGHTS),
    ("devices and the kernel", DEVICES),
    ("temp folders of the machine", TEMP),
    ("daemons", DAEMONS),
];

const PATHS: &[EscapeAttempt] = &[
    ("overwrite", "echo x > @OUT/v.txt"),
    ("append", "echo x >> @OUT/v.txt"),
    ("overwrite by ..", "echo x > ../outside/v.txt"),
    ("overwrite by odd dots", "echo x > ./.././outside/../outside/v.txt"),
    ("create", ": > @OUT/new"),
    ("make a folder", "mkdir -p @OUT/new/deep"),
    ("remove", "rm -f @OUT/v.txt"),
    ("remove everything", "rm -rf @OUT"),
    ("remove a folder", "rmdir @OUT/empty"),
    ("rename", "mv @OUT/v.txt @OUT/w.txt"),
    ("move in", "mv @OUT/v.txt ."),
    ("move out", "echo x > mine && mv mine @OUT/mine"),
    ("move a folder out", "mkdir -p mine.d && mv mine.d @OUT/mine.d"),
    (
        "exchange",
        "py:import os,ctypes\nopen('ex','w').write('x')\nctypes.CDLL(None).renameat2(-100,b'ex',-100,b'@OUT/v.txt',2)",
    ),
    ("truncate", "truncate -s 0 @OUT/v.txt"),
    ("truncate by call", "py:import os\nos.truncate('@OUT/v.txt',0)"),
    ("one byte in place", "printf x | dd of=@OUT/v.txt bs=1 count=1 conv=notrunc"),
    ("a prefix look-alike", "mkdir -p ../work_evil && echo x > ../work_evil/x"),
    ("beside the workspace", "echo x > ../beside"),
    ("allocate", "fallocate -l 10000 @OUT/v.txt"),
    ("punch a hole", "fallocate -p -o 0 -l 1 @OUT/v.txt"),
    ("a pipe outside", "mkfifo @OUT/pipe"),
    ("a socket outside", "py:import socket\nsocket.socket(socket.AF_UNIX).bind('@OUT/new.sock')"),
    ("a device outside", "mknod @OUT/dev c 1 3"),
    (
        "a mapped file",
        "py:import mmap,os\nf=os.open('@OUT/v.txt',os.O_RDWR)\nmmap.mmap(f,0)[0:1]=b'x'",
    ),
    (
        "a file without a name",
        "py:import os\nf=os.open('@OUT',os.O_TMPFILE|os.O_RDWR)\nos.link('/proc/self/fd/%d'%f,'@OUT/new',follow_symlinks=True)",
    ),
    ("the root of the machine", "echo x > /esc-@ID"),
    ("system settings", "echo x > /etc/esc-@ID"),
    ("system programs", "cp /bin/true /usr/local/bin/esc-@ID"),
];

const OUTPUTS: &[EscapeAttempt] = &[
    ("cp", "cp /bin/true @OUT/v.txt"),
    ("cp of all", "cp -a . @OUT/copy"),
    ("tee", "echo x | tee @OUT/v.txt"),
    ("sed in place", "sed -i s/./x/ @OUT/v.txt"),
    ("sed w", "echo x | sed 'w @OUT/v.txt'"),
    ("install", "install -m 755 /bin/true @OUT/tool"),
    ("sort -o", "echo x | sort -o @OUT/v.txt"),
    ("split", "echo xyz | split -b 1 - @OUT/part"),
    ("tar into", "tar cf @OUT/a.tar ."),
    (
        "tar with absolute names",
        "echo x > m && tar -P --transform 's,.*,@OUT/v.txt,' -cf a.tar m && tar -xPf a.tar",
    ),
    (
        "tar through a link",
        "ln -sfn @OUT t && echo x > m && tar --transform 's,m,t/v.txt,' -cf a.tar m && tar --keep-directory-symlink -xf a.tar",
    ),
    ("find -fprint", "find . -maxdepth 1 -fprint @OUT/v.txt"),
    ("awk", "awk 'BEGIN{print \"x\" > \"@OUT/v.txt\"}'"),
    ("perl", "perl -e 'open F,\">\",\"@OUT/v.txt\"; print F 1'"),
    ("python", "py:open('@OUT/v.txt','w').write('x')"),
    ("python removes a tree", "py:import shutil\nshutil.rmtree('@OUT')"),
    ("compiler", "echo 'int main(){return 0;}' > m.c && cc -o @OUT/v.txt m.c"),
    ("curl", "curl -s file:///etc/hostname -o @OUT/v.txt"),
    ("openssl", "openssl rand -out @OUT/v.txt 8"),
    ("git diff --output", "git diff --output=@OUT/v.txt"),
    ("git archive", "git archive -o @OUT/a.tar HEAD"),
    ("git clone", "git clone -q . @OUT/clone"),
    ("git worktree", "git worktree add -q @OUT/tree"),
    ("git bundle", "git bundle create @OUT/b HEAD"),
    ("git init", "git init -q @OUT/repo"),
    (
        "git apply",
        "cd / && git apply --unsafe-paths --directory=@OUT - <<'E'\n--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+x\nE",
    ),
    ("patch", "printf -- '--- a\\n+++ a\\n@@ -1 +1 @@\\n-victim\\n+x\\n' | patch -s @OUT/v.txt"),
    ("ln -f", "echo x > m && ln -f m @OUT/v.txt"),
    ("gzip in place", "gzip -f @OUT/v.txt"),
    ("shred", "shred -u @OUT/v.txt"),
];

const RUNNERS: &[EscapeAttempt] = &[
    ("find -exec", "find @OUT -type f -exec sh -c 'echo x > \"$1\"' _ {} \\;"),
    ("find -delete", "find @OUT -delete"),
    ("xargs", "echo @OUT/v.txt | xargs rm -f"),
    ("awk system", "awk 'BEGIN{system(\"echo x > @OUT/v.txt\")}'"),
    ("make", "printf 'a:\\n\\techo x > @OUT/v.txt\\n' > M && make -f M"),
    ("git alias", "git -c alias.x='!echo x > @OUT/v.txt' x"),
    ("git pager", "git -c core.pager='cat > @OUT/v.txt' -p log"),
    (
        "git filter",
        "git -c filter.f.clean='tee @OUT/v.txt' -c core.attributesFile=/dev/stdin add . <<< '* filter=f'",
    ),
    ("env -i", "env -i /bin/sh -c 'echo x > @OUT/v.txt'"),
    ("a loader", "cp /bin/bash b && ./b -c 'echo x > @OUT/v.txt'"),
    ("the dynamic linker", "/lib64/ld-linux-x86-64.so.2 /bin/rm -f @OUT/v.txt"),
    ("timeout", "timeout 2 sh -c 'echo x > @OUT/v.txt'"),
    ("script", "script -qc 'echo x > @OUT/v.txt' /dev/null"),
    ("nice", "nice -n 5 sh -c 'echo x > @OUT/v.txt'"),
    (
        "a program from memory",
        "py:import os\nf=os.memfd_create('m')\nos.write(f,open('/bin/rm','rb').read())\nos.execv('/proc/self/fd/%d'%f,['rm','-f','@OUT/v.txt'])",
    ),
];

const LINKS: &[EscapeAttempt] = &[
    ("a link to a file", "ln -sfn @OUT/v.txt l1 && echo x > l1"),
    ("a link to a folder", "ln -sfn @OUT l2 && echo x > l2/v.txt"),
    ("a link to the root", "ln -sfn / l3 && echo x > l3@OUT/v.txt"),
    ("a chain of links", "ln -sfn .. l4 && ln -sfn l4/outside l5 && echo x > l5/v.txt"),
    ("a link that hangs", "ln -sfn @OUT/fresh l6 && echo x > l6"),
    ("a hard link in", "ln @OUT/v.txt hard && echo x > hard"),
    (
        "a hard link by descriptor",
        "py:import os\nf=os.open('@OUT/v.txt',os.O_RDONLY)\nos.link('/proc/self/fd/%d'%f,'hard2',follow_symlinks=True)\nopen('hard2','w').write('x')",
    ),
    (
        "a race of links",
        "(for i in $(seq 100); do ln -sfn @OUT r; ln -sfn . r; done) & for i in $(seq 100); do echo x > r/v.txt; done 2>/dev/null; wait",
    ),
    (
        "a race of renames",
        "mkdir -p ra; ln -sfn @OUT rb; (for i in $(seq 60); do mv -T ra rc; mv -T rb ra; mv -T ra rb; mv -T rc ra; done) 2>/dev/null & for i in $(seq 100); do echo x > ra/v.txt; done 2>/dev/null; wait",
    ),
    ("through the root of a process", "echo x > /proc/self/root@OUT/v.txt"),
    ("through the root of the first", "echo x > /proc/1/root@OUT/v.txt"),
    ("through the root of another", "echo x > /proc/@PID/root@OUT/v.txt"),
    ("through the folder of another", "echo x > /proc/@PID/cwd/v.txt"),
    (
        "through a descriptor of a folder",
        "py:import os\nd=os.open('@OUT',os.O_PATH)\nos.open('v.txt',os.O_WRONLY|os.O_TRUNC,dir_fd=d)",
    ),
    ("a link in a writable root", "ln -sfn @OUT @HOME/.cache/l && echo x > @HOME/.cache/l/v.txt"),
    ("move the workspace", "mv ../work ../moved"),
    ("move a writable root", "mv @HOME/.cache @HOME/moved"),
];

const HOME: &[EscapeAttempt] = &[
    ("shell start-up", "echo evil >> @HOME/.bashrc"),
    ("profile", "echo evil >> @HOME/.profile"),
    ("keys of ssh", "mkdir -p @HOME/.ssh; echo evil >> @HOME/.ssh/authorized_keys"),
    (
        "autostart",
        "mkdir -p @HOME/.config/autostart && echo evil > @HOME/.config/autostart/x.desktop",
    ),
    (
        "a unit",
        "mkdir -p @HOME/.config/systemd/user && echo evil > @HOME/.config/systemd/user/x.service",
    ),
    ("a program", "mkdir -p @HOME/.local/bin && echo evil > @HOME/.local/bin/ls"),
    ("a program of cargo", "echo evil > @HOME/.cargo/bin/cargo"),
    ("settings of cargo", "echo evil > @HOME/.cargo/config.toml"),
    ("settings of npm", "echo evil > @HOME/.npmrc"),
    ("settings of git", "git config --global core.pager evil"),
    ("settings of Pixir", "echo '{}' > @HOME/.pixir/config.json"),
    ("tokens of Pixir", "rm -rf @HOME/.pixir"),
    (
        "out of cargo's cache",
        "mkdir -p @HOME/.cargo/registry && echo x > @HOME/.cargo/registry/../bin/cargo",
    ),
    ("a table of cron", "echo '* * * * * true' | crontab -"),
];

const STATE: &[EscapeAttempt] = &[
    ("its settings", "echo '{}' > .pixir/config.json"),
    ("its settings by case", "echo '{}' > .PIXIR/config.json"),
    ("a new file", "touch .pixir/evil"),
    ("remove it", "rm -rf .pixir"),
    ("move it", "mv .pixir moved && mkdir .pixir && echo '{}' > .pixir/config.json"),
    (
        "exchange it",
        "py:import os,ctypes\nos.makedirs('ev',exist_ok=True)\nctypes.CDLL(None).renameat2(-100,b'ev',-100,b'.pixir',2)",
    ),
    ("a link in its place", "rm -rf .pixir; ln -sfn @OUT .pixir"),
    ("cut a Log", ": > .pixir/sessions/a.ndjson"),
    ("forge a Log", "echo forged > .pixir/sessions/a.ndjson"),
    ("append to a Log", "echo forged >> .pixir/sessions/a.ndjson"),
    ("remove a Log", "rm -f .pixir/sessions/a.ndjson"),
    ("replace a Log", "echo forged > n && mv n .pixir/sessions/a.ndjson"),
    ("a Log by hard link", "ln .pixir/sessions/a.ndjson hl && echo forged > hl"),
    ("a Log by link", "ln -sfn .pixir/sessions/a.ndjson sl && echo forged > sl"),
    ("mode of the state folder", "chmod 777 .pixir"),
    ("a Log's mode", "chmod 666 .pixir/sessions/a.ndjson"),
    ("unmount it", "umount .pixir; umount -l .pixir; echo '{}' > .pixir/config.json"),
];

const GIT: &[EscapeAttempt] = &[
    ("a hook", "echo evil > .git/hooks/pre-commit && chmod +x .git/hooks/pre-commit"),
    ("a hook by link", "ln -s ../../evil .git/hooks/post-checkout"),
    ("a hook by move", "echo evil > h && mv h .git/hooks/pre-push"),
    ("an old hook", "echo evil > .git/hooks/sample"),
    (
        "a folder of hooks",
        "rm -rf .git/hooks && mkdir .git/hooks && echo evil > .git/hooks/pre-commit",
    ),
    ("another folder of hooks", "mkdir -p nh && echo evil > nh/pre-commit && mv -T nh .git/hooks"),
    ("a link of hooks", "rm -rf .git/hooks; ln -sfn ../nh .git/hooks"),
    ("a setting", "echo '[core] fsmonitor=evil' >> .git/config"),
    ("a setting by git", "git config core.fsmonitor evil"),
    (
        "a setting by lock",
        "cp .git/config .git/config.lock; echo evil >> .git/config.lock; mv .git/config.lock .git/config; rm -f .git/config.lock",
    ),
    ("a setting by removal", "rm -f .git/config; echo evil > .git/config"),
    ("a path of hooks", "git config core.hooksPath nh"),
    (
        "another repository",
        "mv .git .g && cp -r .g .git && echo evil > .git/hooks/pre-commit && echo evil >> .git/config",
    ),
    ("a copy in its place", "cp -r .git g2 && echo evil >> g2/config && rm -rf .git; mv g2 .git"),
    ("a link in its place", "mv .git g3; ln -sfn g3 .git; echo evil >> g3/config"),
    ("a link to others", "mv .git g4; mkdir -p @OUT/x; ln -sfn @OUT .git"),
    ("a file in its place", "mv .git g5; echo 'gitdir: g5' > .git; echo evil >> g5/config"),
    (
        "another common folder",
        "mkdir -p nc && cp .git/config nc/config && echo evil >> nc/config && echo ../nc > .git/commondir",
    ),
    (
        "a template",
        "mkdir -p tp/hooks && echo evil > tp/hooks/pre-commit && git init -q --template=tp .",
    ),
    ("settings of a module", "echo evil >> .git/modules/sub/config"),
    ("hooks of a module", "echo evil > .git/modules/sub/hooks/pre-commit"),
    ("unmount the hooks", "umount -l .git/hooks .git/config; echo evil > .git/hooks/pre-commit"),
    ("remove all of it", "rm -rf .git"),
    ("a hook behind a closed door", "echo evil > .git/hooks/pre-commit; chmod 000 .git/hooks"),
    (
        "everything behind a closed door",
        "echo evil > .git/hooks/pre-commit; echo nc > .git/commondir; chmod 000 .git",
    ),
    (
        "a crowd before a hook",
        "mkdir -p .git/hooks/a; (cd .git/hooks/a && seq 1 3000 | xargs touch); echo evil > .git/hooks/pre-commit",
    ),
];

const MODES: &[EscapeAttempt] = &[
    ("mode by chmod", "chmod 777 @OUT/v.txt"),
    (
        "mode by fchmodat",
        "py:import os\nd=os.open('@OUT',os.O_PATH)\nos.chmod('v.txt',0o777,dir_fd=d)",
    ),
    (
        "mode through a read descriptor",
        "py:import os\nos.fchmod(os.open('@OUT/v.txt',os.O_RDONLY),0o777)",
    ),
    ("mode of a folder", "chmod 777 @OUT"),
    ("mode through a link", "ln -sfn @OUT/v.txt lm && chmod 600 lm"),
    ("mode of a file in the home", "chmod 777 @HOME/.bashrc"),
    ("owner by chown", "chown 12345 @OUT/v.txt"),
    (
        "group by chgrp",
        "chgrp 12345 @OUT/v.txt || chgrp $(id -G | tr ' ' '\\n' | tail -n 1) @OUT/v.txt",
    ),
    ("touch an old file", "touch @OUT/v.txt"),
    ("touch with a date", "touch -d 2001-01-01 @OUT/v.txt"),
    ("times by utime", "py:import os\nos.utime('@OUT/v.txt',(1,1))"),
    (
        "times through a read descriptor",
        "py:import os\nos.utime(os.open('@OUT/v.txt',os.O_RDONLY),(1,1))",
    ),
    ("attribute by setfattr", "py:import os\nos.setxattr('@OUT/v.txt','user.x',b'1')"),
    ("flags of a file", "chattr +d @OUT/v.txt && echo LEAK-@ID"),
    ("immutable", "chattr +i @OUT/v.txt && sleep 0.1 && chattr -i @OUT/v.txt && echo LEAK-@ID"),
];

const CREDENTIALS: &[EscapeAttempt] = &[
    ("a key", "cat @HOME/.ssh/id"),
    ("a key by tilde", "cat ~/.ssh/id"),
    ("tokens", "cat @HOME/.pixir/auth.json"),
    ("cloud", "cat @HOME/.aws/credentials"),
    ("everything in the home", "grep -r . @HOME/.ssh @HOME/.aws @HOME/.gnupg @HOME/.pixir"),
    ("by tar", "tar c @HOME/.ssh @HOME/.pixir | cat"),
    ("by copy", "cp -r @HOME/.ssh s && cat s/id"),
    ("by link", "ln -sfn @HOME/.ssh ls && cat ls/id"),
    ("by hard link", "ln @HOME/.ssh/id hk && cat hk"),
    ("by another root", "cat /proc/self/root@HOME/.ssh/id /proc/1/root@HOME/.ssh/id"),
    ("by another process", "cat /proc/@PID/root@HOME/.ssh/id"),
    ("by git", "git diff --no-index /dev/null @HOME/.ssh/id"),
    ("by curl", "curl -s file://@HOME/.ssh/id"),
    ("by python", "py:print(open('@HOME/.pixir/auth.json').read())"),
    ("by moving", "mv @HOME/.ssh moved && cat moved/id"),
    ("by another namespace", "unshare -rm sh -c 'umount @HOME/.ssh; cat @HOME/.ssh/id'"),
    ("by unmounting", "umount -l @HOME/.ssh; cat @HOME/.ssh/id"),
    ("in the environment", "env"),
    ("in the environment of the first", "cat /proc/1/environ /proc/$PPID/environ | tr '\\0' '\\n'"),
    ("a browser", "cat @HOME/.mozilla/cookies"),
];

const PROCESSES: &[EscapeAttempt] = &[
    ("environment of another", "tr '\\0' '\\n' < /proc/@PID/environ"),
    ("environment by ps", "ps eww -p @PID"),
    ("memory of another", "py:f=open('/proc/@PID/mem','rb',0)\nprint('LEAK-@ID')"),
    ("kill", "kill @PID"),
    ("kill for good", "kill -9 @PID"),
    ("stop", "kill -STOP @PID"),
    ("kill by descriptor", "py:import os,signal\nsignal.pidfd_send_signal(os.pidfd_open(@PID),9)"),
    (
        "trace",
        "py:import ctypes\nr=ctypes.CDLL(None).ptrace(16,@PID,0,0)\nprint('LEAK-@ID' if r==0 else r)",
    ),
    ("trace with a tool", "timeout 1 strace -o st -p @PID; grep -q . st && echo LEAK-@ID"),
    (
        "read across",
        "py:import ctypes\nclass V(ctypes.Structure):\n  _fields_=[('b',ctypes.c_void_p),('l',ctypes.c_size_t)]\nb=ctypes.create_string_buffer(8)\nl=V(ctypes.cast(b,ctypes.c_void_p),8)\nm=[x for x in open('/proc/@PID/maps')]\nr=V(int(m[0].split('-')[0],16),8)\nn=ctypes.CDLL(None).process_vm_readv(@PID,ctypes.byref(l),1,ctypes.byref(r),1,0)\nprint('LEAK-@ID' if n>0 else n)",
    ),
    (
        "take a descriptor",
        "py:import os,ctypes\nr=ctypes.CDLL(None).syscall(438,os.pidfd_open(@PID),0,0)\nprint('LEAK-@ID' if r>=0 else r)",
    ),
    ("nice of another process", "renice 5 -p @PID"),
    ("affinity of another process", "taskset -p 1 @PID"),
    ("limits of another", "prlimit --pid @PID --core=0:0"),
    ("oom score of another", "echo 500 > /proc/@PID/oom_score_adj"),
    ("a setting of the kernel", "echo esc-@ID > /proc/sys/kernel/hostname"),
    ("a setting by tool", "sysctl -w kernel.hostname=esc-@ID"),
    ("a key press", "echo h > /proc/sysrq-trigger && echo LEAK-@ID"),
    ("name of another", "echo evil > /proc/@PID/comm"),
];

const DESCRIPTORS: &[EscapeAttempt] = &[
    ("inherited ones", "for i in 3 4 5 6 7 8 9 10 11 12; do echo x >&$i; done"),
    ("all there are", "ls /proc/self/fd | grep -vE '^[0-3]$' && echo LEAK-@ID"),
    ("the status of the supervisor", "echo 'exit 0' > /proc/$PPID/fd/2 && echo LEAK-@ID"),
    ("the lifeline", "cat < /proc/$PPID/fd/0 && echo LEAK-@ID"),
    ("orders", "printf K > /proc/$PPID/fd/0 && echo LEAK-@ID"),
    ("a terminal", "echo x > /dev/tty && echo LEAK-@ID"),
    ("a terminal of the user", "echo x > @TERM && echo LEAK-@ID"),
    ("what the user types", "exec 3<>@TERM && echo LEAK-@ID"),
    ("typing", "py:import fcntl,termios\nfcntl.ioctl(1,termios.TIOCSTI,b'x')\nprint('LEAK-@ID')"),
];

const NETWORK: &[EscapeAttempt] = &[
    ("tcp", "py:import socket\nsocket.create_connection(('127.0.0.1',@TCP),2).send(b'x')"),
    ("tcp by the shell", "echo x > /dev/tcp/127.0.0.1/@TCP"),
    ("tcp by curl", "curl -s -m 2 http://127.0.0.1:@TCP/"),
    ("tcp by name", "curl -s -m 2 http://localhost:@TCP/"),
    ("tcp in other words", "py:import socket\nsocket.create_connection(('0.0.0.0',@TCP),2)"),
    (
        "tcp in version 6",
        "py:import socket\ns=socket.socket(socket.AF_INET6)\ns.settimeout(2)\ns.connect(('::ffff:127.0.0.1',@TCP))",
    ),
    (
        "tcp in one go",
        "py:import socket\ns=socket.socket()\ns.sendto(b'x',0x20000000,('127.0.0.1',@TCP))",
    ),
    (
        "tcp by many paths",
        "py:import socket\ns=socket.socket(2,1,262)\ns.settimeout(2)\ns.connect(('127.0.0.1',@TCP))",
    ),
    ("udp", "py:import socket\nsocket.socket(2,2).sendto(b'x',('127.0.0.1',@UDP))"),
    ("udp by the shell", "echo x > /dev/udp/127.0.0.1/@UDP"),
    (
        "udp in version 6",
        "py:import socket\nsocket.socket(10,2).sendto(b'x',('::ffff:127.0.0.1',@UDP))",
    ),
    (
        "udp to all",
        "py:import socket\ns=socket.socket(2,2)\ns.setsockopt(1,6,1)\ns.sendto(b'x',('127.255.255.255',@UDP))",
    ),
    ("raw", "py:import socket\nsocket.socket(2,3,1)\nprint('LEAK-@ID')"),
    ("packets", "py:import socket\nsocket.socket(17,3,768)\nprint('LEAK-@ID')"),
    ("virtual machines", "py:import socket\nsocket.socket(40,1)\nprint('LEAK-@ID')"),
    ("audit", "py:import socket\nsocket.socket(16,3,9)\nprint('LEAK-@ID')"),
    ("kernel's ciphers", "py:import socket\nsocket.socket(38,5)\nprint('LEAK-@ID')"),
    ("the network of another", "nsenter -t @PID -n curl -s -m 2 http://127.0.0.1:@TCP/"),
    ("a new user's network", "unshare -rn true && echo LEAK-@ID"),
    (
        "a ring",
        "py:import ctypes\nb=ctypes.create_string_buffer(120)\nr=ctypes.CDLL(None).syscall(425,4,b)\nprint('LEAK-@ID' if r>=0 else r)",
    ),
];

/// Attempts that are made with and without the network.
pub const SOCKETS: &[EscapeAttempt] = &[
    ("by name", "py:import socket\ns=socket.socket(1)\ns.connect('@SOCK')\ns.send(b'x')"),
    ("by a link", "ln -sfn @SOCK k1; py3 k1"),
    ("by a link to its folder", "ln -sfn @OUT k2; py3 k2/s.sock"),
    ("by a hard link", "ln @SOCK k3; py3 k3"),
    ("from its folder", "cd @OUT && py3 s.sock"),
    ("by ..", "py3 ../outside/s.sock"),
    ("by another root", "py3 /proc/@PID/root@SOCK"),
    ("by the folder of another", "py3 /proc/@PID/cwd/s.sock"),
    ("in the home", "py3 @HOME/agent.sock"),
    ("a datagram", "py:import socket\nsocket.socket(1,2).sendto(b'x','@DGRAM')"),
    (
        "an abstract one",
        "py:import socket\ns=socket.socket(1)\ns.connect(b'\\0@ABS')\ns.send(b'x')",
    ),
    ("by curl", "curl -s -m 2 --unix-socket @SOCK http://x/"),
    ("by moving it", "mv @SOCK k4; py3 k4"),
    ("by copying its folder", "cp -r @OUT k5; py3 k5/s.sock"),
];

const MOUNTS: &[EscapeAttempt] = &[
    ("bind", "mkdir -p b && mount --bind @OUT b && echo x > b/v.txt"),
    ("remount", "mount -o remount,rw /; echo x > @OUT/v.txt"),
    ("remount the bind", "mount -o remount,rw,bind @OUT; echo x > @OUT/v.txt"),
    ("a file system", "mkdir -p b && mount -t tmpfs none b && echo LEAK-@ID"),
    ("processes", "mkdir -p b && mount -t proc none b && echo LEAK-@ID"),
    (
        "an overlay",
        "mkdir -p u w2 && mount -t overlay -o lowerdir=/,upperdir=u,workdir=w2 none b && echo LEAK-@ID",
    ),
    ("a new user", "unshare -r true && echo LEAK-@ID"),
    (
        "a new user that mounts",
        "unshare -rm sh -c 'mount -o remount,rw,bind / ; echo x > @OUT/v.txt'",
    ),
    (
        "a new user by call",
        "py:import ctypes\nr=ctypes.CDLL(None).unshare(0x10000000)\nprint('LEAK-@ID' if r==0 else r)",
    ),
    ("a new world", "unshare -m true && echo LEAK-@ID"),
    ("the world of another", "nsenter -t @PID -m sh -c 'echo x > @OUT/v.txt'"),
    ("the world of the first", "nsenter -t 1 -m -p sh -c 'echo x > @OUT/v.txt'"),
    (
        "its descriptor",
        "py:import os,ctypes\nr=ctypes.CDLL(None).setns(os.open('/proc/@PID/ns/mnt',0),0)\nprint('LEAK-@ID' if r==0 else r)",
    ),
    ("another root", "chroot / true && echo LEAK-@ID"),
    (
        "a tree",
        "py:import ctypes\nr=ctypes.CDLL(None).syscall(428,-100,b'/',1)\nprint('LEAK-@ID' if r>=0 else r)",
    ),
    (
        "a file by handle",
        "py:import ctypes\nr=ctypes.CDLL(None).syscall(304,-100,ctypes.create_string_buffer(64),0)\nprint('LEAK-@ID' if r>=0 or ctypes.get_errno()==116 else r)",
    ),
    ("a loop", "truncate -s 1M img && losetup -f img && echo LEAK-@ID"),
];

const RIGHTS: &[EscapeAttempt] = &[
    ("sudo", "sudo -n sh -c 'echo x > @OUT/v.txt'"),
    ("su", "su root -c 'echo x > @OUT/v.txt' < /dev/null"),
    ("a program of root", "cp /bin/sh rs && chmod u+s rs && ./rs -p -c 'echo x > @OUT/v.txt'"),
    ("become root", "py:import os\nos.setuid(0)\nopen('@OUT/v.txt','w').write('x')"),
    ("become somebody", "setpriv --reuid 12345 sh -c 'echo x > @OUT/v.txt'"),
    ("capabilities", "setcap all+ep /bin/sh; capsh --gid=0 -- -c 'echo x > @OUT/v.txt'"),
    ("keep all rights", "grep -E '^CapEff:\\s+0*1ff' /proc/self/status && echo LEAK-@ID"),
    ("new privileges", "grep -q 'NoNewPrivs:.*0' /proc/self/status && echo LEAK-@ID"),
    ("no filter", "grep -q 'Seccomp:.*0' /proc/self/status && echo LEAK-@ID"),
];

const DEVICES: &[EscapeAttempt] = &[
    (
        "the disk",
        "for d in /dev/[svn][dv][a-z]* /dev/nvme*; do head -c 1 $d > /dev/null && echo LEAK-@ID; done",
    ),
    ("a disk of its own", "mknod dsk b 254 0 && head -c 1 dsk > /dev/null && echo LEAK-@ID"),
    ("memory", "head -c 1 /dev/mem > /dev/null && echo LEAK-@ID"),
    ("the kernel's log", "echo esc-@ID > /dev/kmsg && echo LEAK-@ID"),
    ("a network device", "exec 9<>/dev/net/tun && echo LEAK-@ID"),
    ("a file system of its own", "exec 9<>/dev/fuse && echo LEAK-@ID"),
    ("a machine", "exec 9<>/dev/kvm && echo LEAK-@ID"),
    (
        "the clock",
        "py:import time\ntime.clock_settime(time.CLOCK_REALTIME,time.time())\nprint('LEAK-@ID')",
    ),
    ("the name of the machine", "hostname esc-@ID"),
    ("a module", "insmod /lib/modules/x.ko && echo LEAK-@ID"),
    (
        "keys",
        "py:import ctypes\nr=ctypes.CDLL(None).syscall(248,b'user',b'k',b'v',1,-3)\nprint('LEAK-@ID' if r>=0 else r)",
    ),
    (
        "programs of the kernel",
        "py:import ctypes\nr=ctypes.CDLL(None).syscall(321,0,ctypes.create_string_buffer(128),128)\nprint('LEAK-@ID' if r>=0 else r)",
    ),
    (
        "measurements",
        "py:import ctypes\nr=ctypes.CDLL(None).syscall(298,ctypes.create_string_buffer(b'\\1'+b'\\0'*3+b'\\x70'+b'\\0'*123),0,-1,-1,0)\nprint('LEAK-@ID' if r>=0 else r)",
    ),
    (
        "a control group",
        "mkdir /sys/fs/cgroup/esc-@ID; mkdir /sys/fs/cgroup/unified/esc-@ID; mkdir /sys/fs/cgroup/pids/esc-@ID",
    ),
    ("a queue of messages", "py:import ctypes\nctypes.CDLL(None).msgget(0x@ID,0o1600)"),
    ("shared memory of System V", "py:import ctypes\nctypes.CDLL(None).shmget(0x@ID,4096,0o1600)"),
    ("a semaphore of System V", "py:import ctypes\nctypes.CDLL(None).semget(0x@ID,1,0o1600)"),
];

const TEMP: &[EscapeAttempt] = &[
    ("a file", "touch /tmp/esc-@ID"),
    ("a file of long life", "touch /var/tmp/esc-@ID"),
    ("shared memory", "touch /dev/shm/esc-@ID"),
    ("run", "touch /run/esc-@ID; mkdir -p /run/user/0/esc-@ID"),
    (
        "beside the scratch",
        "touch \"$TMPDIR/../esc-@ID\"; touch \"$TMPDIR/../nothing\"; rm -rf \"$TMPDIR\"/../guard*",
    ),
    ("what hides", "chmod 777 \"$TMPDIR/../empty\"; echo x > \"$TMPDIR/../empty/esc-@ID\""),
];

const DAEMONS: &[EscapeAttempt] = &[
    ("in the background", "(exec -a esc-@ID sleep 60; echo x > @OUT/v.txt) & echo"),
    ("without a terminal", "nohup sh -c 'sleep 0.3; echo x > @OUT/v.txt' >/dev/null 2>&1 & echo"),
    ("in another session", "setsid bash -c 'exec -a esc-@ID sleep 60' >/dev/null 2>&1 & echo"),
    (
        "by two forks",
        "perl -e 'use POSIX; exit if fork; setsid(); exit if fork; exec {\"sleep\"} \"esc-@ID\", 60'",
    ),
    ("by at", "echo 'touch @OUT/at' | at now"),
    ("by the system", "systemd-run --user touch @OUT/unit; systemd-run touch @OUT/unit"),
    ("by a multiplexer", "screen -dm touch @OUT/screen; tmux new -d 'touch @OUT/tmux'"),
    ("by docker", "docker run --rm -v @OUT:/o busybox touch /o/docker"),
];
