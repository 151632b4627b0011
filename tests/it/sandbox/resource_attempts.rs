//! The table of attempts to use up memory, processes and files.

/// One attempt to use up something.
pub struct ResourceAttempt {
    pub name: &'static str,
    /// A shell command, or a Python program after `py:`.
    pub command: &'static str,
    /// Texts of which the result contains at least one.
    pub expected_result: &'static [&'static str],
    /// The resource that is used up without other limits.
    pub takes: Takes,
}

/// The resource that an attempt uses up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// Memory, also without a sandbox of its own.
    Memory,
    /// Memory behind `/dev/shm` or System V segments, which `full` limits.
    SharedMemory,
    /// Other resources.
    Other,
}

/// Texts of a result when memory was used up.
const MEMORY: &[&str] = &["limit: memory was used up, and the kernel killed"];
const SHARED: &[&str] = &["sandbox.max_shared_memory_bytes"];
/// Texts of a result when the kernel refuses the attempt, or counts it as memory.
const REFUSED: &[&str] = &["refused", "limit: memory was used up"];

const fn attempt(
    name: &'static str,
    command: &'static str,
    expected_result: &'static [&'static str],
    takes: Takes,
) -> ResourceAttempt {
    ResourceAttempt { name, command, expected_result, takes }
}

/// Attempts that killed Pixir itself when nothing was limited.
pub const DEADLY: &[ResourceAttempt] = &[
    attempt("fill /dev/shm", "head -c 2G /dev/zero > /dev/shm/x", SHARED, Takes::SharedMemory),
    attempt(
        "400 small processes",
        "mkfifo p; exec 3<>p; for i in $(seq 400); do dd if=/dev/zero of=p bs=2M count=1 & done 2>/dev/null; sleep 4",
        MEMORY,
        Takes::Memory,
    ),
    attempt("one process without end", "tail /dev/zero", MEMORY, Takes::Memory),
    attempt(
        "an array of perl",
        "perl -e 'push @a, qq(x$n) x 1000000 while ++$n'",
        MEMORY,
        Takes::Memory,
    ),
];

/// Further attempts.
pub const FURTHER: &[ResourceAttempt] = &[
    attempt(
        "many files in /dev/shm",
        "cd /dev/shm && seq 1 30000 | xargs touch 2>&1 | tail -1; exit 1",
        SHARED,
        Takes::SharedMemory,
    ),
    attempt(
        "a file in memory",
        "py:import os\nf=os.memfd_create('x')\nwhile 1: os.write(f,b'x'*(1<<20))",
        MEMORY,
        Takes::Memory,
    ),
    attempt(
        "a shared mapping",
        "py:import mmap\nm=mmap.mmap(-1,2<<30)\nfor i in range(0,2<<30,1<<20): m[i:i+(1<<20)]=b'x'*(1<<20)",
        MEMORY,
        Takes::Memory,
    ),
    attempt(
        "a POSIX segment",
        "py:import mmap,os\nf=os.open('/dev/shm/seg',os.O_RDWR|os.O_CREAT)\nos.ftruncate(f,2<<30)\nm=mmap.mmap(f,2<<30)\nfor i in range(0,2<<30,1<<20): m[i:i+(1<<20)]=b'x'*(1<<20)",
        SHARED,
        Takes::SharedMemory,
    ),
    attempt(
        "System V segments",
        "py:import ctypes\nc=ctypes.CDLL(None,use_errno=True)\nc.shmat.restype=ctypes.c_void_p\nfor n in range(40):\n  i=c.shmget(0,64<<20,0o1600)\n  if i<0: raise OSError(ctypes.get_errno(),'No space left on device' if ctypes.get_errno()==28 else 'shmget')\n  ctypes.memset(c.shmat(i,None,0),1,64<<20)",
        &["sandbox.max_shared_memory_bytes", "limit: memory was used up"],
        Takes::SharedMemory,
    ),
    attempt(
        "mlock",
        "py:import ctypes,mmap,sys\nc=ctypes.CDLL(None)\nm=mmap.mmap(-1,1<<30)\na=ctypes.addressof(ctypes.c_char.from_buffer(m))\nr=c.mlock(ctypes.c_void_p(a),ctypes.c_size_t(1<<30))\nprint('refused' if r else 'locked')\nsys.exit(1)",
        REFUSED,
        Takes::Other,
    ),
    attempt(
        "buffers of pipes",
        "py:import fcntl,os,sys\nn=0\nkept=[]\ntry:\n  while n<3000:\n    r,w=os.pipe()\n    kept.append((r,w))\n    fcntl.fcntl(w,1031,1<<20)\n    os.set_blocking(w,False)\n    n+=1\n    try:\n      while os.write(w,b'x'*65536): pass\n    except BlockingIOError: pass\nexcept OSError as e: print('refused',n,e)\nsys.exit(1)",
        REFUSED,
        Takes::Other,
    ),
    attempt(
        "buffers of sockets",
        "py:import socket,sys\nkept=[]\ntry:\n  while len(kept)<20000:\n    a,b=socket.socketpair()\n    kept.append((a,b))\n    a.setblocking(False)\n    try:\n      while a.send(b'x'*65536): pass\n    except BlockingIOError: pass\nexcept OSError as e: print('refused',e)\nsys.exit(1)",
        REFUSED,
        Takes::Other,
    ),
    attempt(
        "a fork bomb",
        "b() { b | b & b; }; b",
        &["sandbox.max_processes", "limit: memory was used up"],
        Takes::Other,
    ),
    attempt(
        "threads without end",
        "py:import threading,time\nwhile 1: threading.Thread(target=time.sleep,args=(100,),daemon=True).start()",
        &["sandbox.max_processes", "limit: memory was used up"],
        Takes::Other,
    ),
    attempt("a huge file", "truncate -s 4G big", &["sandbox.max_file_bytes"], Takes::Other),
    attempt(
        "many open files",
        "py:import os,resource\ns,h=resource.getrlimit(resource.RLIMIT_NOFILE)\nresource.setrlimit(resource.RLIMIT_NOFILE,(h,h))\nassert h<=4096\nkept=[open('/dev/null') for n in range(5000)]",
        &["sandbox.max_open_files"],
        Takes::Other,
    ),
    attempt(
        "raise the limits again",
        "ulimit -Hn 1000000 || ulimit -Hf unlimited || ulimit -Hc 1 || { echo refused; exit 1; }",
        &["refused"],
        Takes::Other,
    ),
    attempt(
        "lower its own score",
        "for n in -1000 0 500; do echo $n > /proc/self/oom_score_adj; done; cat /proc/self/oom_score_adj; exit 1",
        &["\n1000\n"],
        Takes::Other,
    ),
    attempt(
        "write to /run",
        "head -c 1G /dev/zero > /run/x || { echo refused; exit 1; }",
        &["refused"],
        Takes::Other,
    ),
    attempt(
        "a larger /dev/shm",
        "mount -o remount,size=100% /dev/shm || { echo refused; exit 1; }",
        &["refused"],
        Takes::Other,
    ),
];
