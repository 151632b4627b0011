//! The filter: system calls that a command may not make, whatever its arguments lead to.
//!
//! It closes what neither mounts nor Landlock see: kinds of sockets, other processes' memory, new
//! namespaces with rights of their own, and the kernel's rarely used doors.

use std::collections::BTreeMap;

use nix::libc;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

use super::spec::{Network, Spec};

/// What a command may do that depends on where it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a group of system calls")]
pub struct Freedom {
    /// Sockets of the internet.
    pub internet: bool,
    /// Sockets with names, and pairs from which one can send to a name.
    pub local: bool,
    /// Memory, queues and semaphores of System V, and the queues of POSIX.
    pub system_v: bool,
    /// Modes, owners, times and attributes of files.
    pub attributes: bool,
}

impl Freedom {
    /// In a world of its own all of it is harmless; what is not is covered there.
    pub fn in_own_world(local: bool) -> Self {
        Self { internet: true, local, system_v: true, attributes: true }
    }
    /// Without one, a kind of call is the only thing that can be forbidden.
    pub fn without_world(spec: &Spec, local: bool) -> Self {
        Self {
            internet: spec.network == Network::Open,
            local,
            system_v: false,
            attributes: !spec.writable.is_empty(),
        }
    }
}

/// Answered with "operation not permitted".
const FORBIDDEN: &[i64] = &[
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    // The shape of the file system.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_open_by_handle_at,
    libc::SYS_setns,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    // The kernel itself.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_syslog,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_vhangup,
    libc::SYS_lookup_dcookie,
    libc::SYS_nfsservctl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_kexec_file_load,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
];

/// Shared by everybody on the machine. What is there already has a number that `/proc` tells, so
/// making new ones is not all that must be forbidden.
const SYSTEM_V: &[i64] = &[
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_semctl,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
];

/// Landlock looks at none of these.
const ATTRIBUTES: &[i64] = &[
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchmodat2,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    SETXATTRAT,
    REMOVEXATTRAT,
    FILE_SETATTR,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utime,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utimes,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_futimesat,
];
/// Too new for the table of names; the numbers are the same everywhere.
const SETXATTRAT: i64 = 463;
const REMOVEXATTRAT: i64 = 466;
const FILE_SETATTR: i64 = 469;

/// Answered as by a kernel that lacks them, because programs then take another way that can be
/// looked at: the arguments of `clone3` and the work of a ring are out of a filter's sight.
const MISSING: &[i64] = &[
    libc::SYS_clone3,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];

/// Every kind of namespace.
const NAMESPACES: &[i32] = &[
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWCGROUP,
];

/// Flags and attributes of a file that is open, also to read.
const FILE_FLAGS: &[u64] = &[
    0x4008_6602, // FS_IOC_SETFLAGS
    0x4004_6602, // FS_IOC32_SETFLAGS
    0x4008_7602, // FS_IOC_SETVERSION
    0x4004_7602, // FS_IOC32_SETVERSION
    0x401c_5820, // FS_IOC_FSSETXATTR
];

/// Puts words into a terminal as if they had been typed.
const TERMINAL_INPUT: &[u64] = &[libc::TIOCSTI, libc::TIOCLINUX];

/// On `x86_64` a second set of numbers for the same calls, which few kernels have.
const X32: i64 = 0x4000_0000;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;
type Outcome<T> = Result<T, seccompiler::BackendError>;

/// The programs to apply, in this order.
pub fn programs(freedom: Freedom) -> Outcome<Vec<BpfProgram>> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let compile = |rules: Rules, errno: i32| -> Outcome<BpfProgram> {
        let answer = SeccompAction::Errno(errno.unsigned_abs());
        SeccompFilter::new(with_x32(rules), SeccompAction::Allow, answer, arch)?.try_into()
    };
    let mut forbidden: Rules = FORBIDDEN.iter().map(|call| (*call, Vec::new())).collect();
    if !freedom.system_v {
        forbidden.extend(SYSTEM_V.iter().map(|call| (*call, Vec::new())));
    }
    if !freedom.attributes {
        forbidden.extend(ATTRIBUTES.iter().map(|call| (*call, Vec::new())));
    }
    for call in [libc::SYS_unshare, libc::SYS_clone] {
        let rules = NAMESPACES.iter().map(|kind| {
            let bit = u64::from(kind.unsigned_abs());
            rule([is(0, SeccompCmpOp::MaskedEq(bit), bit)])
        });
        forbidden.insert(call, rules.collect::<Outcome<_>>()?);
    }
    // Limits of other processes; one's own go by number 0.
    forbidden.insert(libc::SYS_prlimit64, vec![rule([is(0, SeccompCmpOp::Ne, 0)])?]);
    let flags = FILE_FLAGS.iter().filter(|_| !freedom.attributes);
    let requests = TERMINAL_INPUT.iter().chain(flags);
    let requests = requests.map(|request| rule([is(1, SeccompCmpOp::Eq, *request)]));
    forbidden.insert(libc::SYS_ioctl, requests.collect::<Outcome<_>>()?);
    let missing: Rules = MISSING.iter().map(|call| (*call, Vec::new())).collect();
    let sockets: Rules =
        [(libc::SYS_socket, socket_rules(freedom)?), (libc::SYS_socketpair, pair_rules(freedom)?)]
            .into();
    Ok(vec![
        compile(forbidden, libc::EPERM)?,
        compile(missing, libc::ENOSYS)?,
        compile(sockets, libc::EACCES)?,
    ])
}

/// What is refused: all families but the harmless ones, raw sockets, and netlink but for routes.
fn socket_rules(freedom: Freedom) -> Outcome<Vec<SeccompRule>> {
    let mut families = vec![libc::AF_NETLINK];
    if freedom.internet {
        families.extend([libc::AF_INET, libc::AF_INET6]);
    }
    if freedom.local {
        families.push(libc::AF_UNIX);
    }
    let number = |value: i32| u64::from(value.unsigned_abs());
    let others = families.iter().map(|family| is(0, SeccompCmpOp::Ne, number(*family)));
    let mut rules = vec![rule(others)?];
    let netlink = is(0, SeccompCmpOp::Eq, number(libc::AF_NETLINK));
    rules.push(rule([netlink, is(2, SeccompCmpOp::Ne, number(libc::NETLINK_ROUTE))])?);
    for family in [libc::AF_INET, libc::AF_INET6] {
        let raw = is(1, SeccompCmpOp::MaskedEq(0xf), number(libc::SOCK_RAW));
        rules.push(rule([is(0, SeccompCmpOp::Eq, number(family)), raw])?);
    }
    Ok(rules)
}

/// What is refused of pairs: other families, and where names are out of bounds datagrams, which can
/// be sent from one end to any name. Streams and sequenced packets stay connected to the other end.
fn pair_rules(freedom: Freedom) -> Outcome<Vec<SeccompRule>> {
    let number = |value: i32| u64::from(value.unsigned_abs());
    let mut rules = vec![rule([is(0, SeccompCmpOp::Ne, number(libc::AF_UNIX))])?];
    if !freedom.local {
        // The kind is in the lowest four bits: 1 is a stream, and 5 are sequenced packets.
        for (bit, refused) in [(1, 0), (2, 2), (8, 8)] {
            rules.push(rule([is(1, SeccompCmpOp::MaskedEq(bit), refused)])?);
        }
    }
    Ok(rules)
}

fn is(argument: u8, operator: SeccompCmpOp, value: u64) -> Outcome<SeccompCondition> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
}

fn rule(conditions: impl IntoIterator<Item = Outcome<SeccompCondition>>) -> Outcome<SeccompRule> {
    SeccompRule::new(conditions.into_iter().collect::<Outcome<_>>()?)
}

fn with_x32(rules: Rules) -> Rules {
    if !cfg!(target_arch = "x86_64") {
        return rules;
    }
    let twins: Vec<_> = rules.iter().map(|(call, rules)| (call | X32, rules.clone())).collect();
    rules.into_iter().chain(twins).collect()
}
