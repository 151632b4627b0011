//! Seccomp filters: system calls that a command may not make, regardless of the files in their arguments.
//!
//! The filters deny access that neither mounts nor Landlock control: kinds of sockets, other processes' memory,
//! new namespaces with additional rights, and rarely used interfaces of the kernel.

use std::collections::BTreeMap;

use nix::libc;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

use super::spec::{Network, SandboxSpec};

/// The groups of system calls that are allowed or denied depending on the namespaces of the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a group of system calls")]
pub struct SyscallPolicy {
    /// Sockets of the internet.
    pub internet: bool,
    /// Named Unix sockets, and socket pairs that can send to a named socket.
    pub local: bool,
    /// Memory, queues and semaphores of System V, and the queues of POSIX.
    pub system_v: bool,
    /// Modes, owners, times and attributes of files.
    pub attributes: bool,
}

impl SyscallPolicy {
    /// The policy for a command with its own namespaces: all groups are allowed, because mounts and namespaces
    /// already restrict them.
    pub fn for_own_namespaces(local: bool) -> Self {
        Self { internet: true, local, system_v: true, attributes: true }
    }
    /// The policy for a command on the host's mounts, where only denying whole groups of calls protects.
    pub fn for_host(spec: &SandboxSpec, local: bool) -> Self {
        Self {
            internet: spec.network == Network::Open,
            local,
            system_v: false,
            attributes: !spec.writable.is_empty(),
        }
    }
}

/// Calls that fail with `EPERM`.
const DENIED_CALLS: &[i64] = &[
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    // Mounts, namespaces and swap.
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

/// Calls on System V and POSIX objects, which all programs of the machine share. `/proc` shows the numbers of
/// existing ones, so using them is denied as well as creating them.
const SYSTEM_V_CALLS: &[i64] = &[
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

/// Calls that change attributes of files; Landlock does not check them.
const ATTRIBUTE_CALLS: &[i64] = &[
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
/// Calls that `libc` does not name yet; their numbers are the same on every architecture.
const SETXATTRAT: i64 = 463;
const REMOVEXATTRAT: i64 = 466;
const FILE_SETATTR: i64 = 469;

/// Calls that fail with `ENOSYS`, because programs then fall back to calls that can be checked: a filter cannot
/// see the arguments of `clone3` or the operations of an `io_uring`.
const UNSUPPORTED_CALLS: &[i64] = &[
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

/// `ioctl` requests that change flags and attributes of an open file, even of one that is open only for reading.
const FILE_FLAG_REQUESTS: &[u64] = &[
    0x4008_6602, // FS_IOC_SETFLAGS
    0x4004_6602, // FS_IOC32_SETFLAGS
    0x4008_7602, // FS_IOC_SETVERSION
    0x4004_7602, // FS_IOC32_SETVERSION
    0x401c_5820, // FS_IOC_FSSETXATTR
];

/// `ioctl` requests that insert input into a terminal as if it had been typed.
const TERMINAL_INPUT_REQUESTS: &[u64] = &[libc::TIOCSTI, libc::TIOCLINUX];

/// The bit of x32 call numbers: a second set of numbers for the same calls on `x86_64`, which few kernels support.
const X32_BIT: i64 = 0x4000_0000;

type SyscallRules = BTreeMap<i64, Vec<SeccompRule>>;
type FilterResult<T> = Result<T, seccompiler::BackendError>;

/// Compiles the seccomp programs, in the order in which they are applied.
pub fn compile_programs(policy: SyscallPolicy) -> FilterResult<Vec<BpfProgram>> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let compile = |rules: SyscallRules, errno: i32| -> FilterResult<BpfProgram> {
        let answer = SeccompAction::Errno(errno.unsigned_abs());
        SeccompFilter::new(add_x32_calls(rules), SeccompAction::Allow, answer, arch)?.try_into()
    };
    let mut forbidden: SyscallRules = DENIED_CALLS.iter().map(|call| (*call, Vec::new())).collect();
    if !policy.system_v {
        forbidden.extend(SYSTEM_V_CALLS.iter().map(|call| (*call, Vec::new())));
    }
    if !policy.attributes {
        forbidden.extend(ATTRIBUTE_CALLS.iter().map(|call| (*call, Vec::new())));
    }
    for call in [libc::SYS_unshare, libc::SYS_clone] {
        let rules = NAMESPACES.iter().map(|kind| {
            let bit = u64::from(kind.unsigned_abs());
            all_conditions([argument_condition(0, SeccompCmpOp::MaskedEq(bit), bit)])
        });
        forbidden.insert(call, rules.collect::<FilterResult<_>>()?);
    }
    // Only limits of other processes are denied: a process passes pid 0 for its own.
    forbidden.insert(
        libc::SYS_prlimit64,
        vec![all_conditions([argument_condition(0, SeccompCmpOp::Ne, 0)])?],
    );
    let flags = FILE_FLAG_REQUESTS.iter().filter(|_| !policy.attributes);
    let requests = TERMINAL_INPUT_REQUESTS.iter().chain(flags);
    let requests =
        requests.map(|request| all_conditions([argument_condition(1, SeccompCmpOp::Eq, *request)]));
    forbidden.insert(libc::SYS_ioctl, requests.collect::<FilterResult<_>>()?);
    let missing: SyscallRules = UNSUPPORTED_CALLS.iter().map(|call| (*call, Vec::new())).collect();
    let sockets: SyscallRules =
        [(libc::SYS_socket, socket_rules(policy)?), (libc::SYS_socketpair, pair_rules(policy)?)]
            .into();
    Ok(vec![
        compile(forbidden, libc::EPERM)?,
        compile(missing, libc::ENOSYS)?,
        compile(sockets, libc::EACCES)?,
    ])
}

/// Denied sockets: all families except the harmless ones, raw sockets, and netlink except for routes.
fn socket_rules(policy: SyscallPolicy) -> FilterResult<Vec<SeccompRule>> {
    let mut families = vec![libc::AF_NETLINK];
    if policy.internet {
        families.extend([libc::AF_INET, libc::AF_INET6]);
    }
    if policy.local {
        families.push(libc::AF_UNIX);
    }
    let number = |value: i32| u64::from(value.unsigned_abs());
    let others =
        families.iter().map(|family| argument_condition(0, SeccompCmpOp::Ne, number(*family)));
    let mut rules = vec![all_conditions(others)?];
    let netlink = argument_condition(0, SeccompCmpOp::Eq, number(libc::AF_NETLINK));
    rules.push(all_conditions([
        netlink,
        argument_condition(2, SeccompCmpOp::Ne, number(libc::NETLINK_ROUTE)),
    ])?);
    for family in [libc::AF_INET, libc::AF_INET6] {
        let raw = argument_condition(1, SeccompCmpOp::MaskedEq(0xf), number(libc::SOCK_RAW));
        rules.push(all_conditions([argument_condition(0, SeccompCmpOp::Eq, number(family)), raw])?);
    }
    Ok(rules)
}

/// Denied socket pairs: other families, and where named sockets are denied also datagram pairs, because one
/// end can send to any name. Streams and sequenced packets stay connected to the other end.
fn pair_rules(policy: SyscallPolicy) -> FilterResult<Vec<SeccompRule>> {
    let number = |value: i32| u64::from(value.unsigned_abs());
    let mut rules =
        vec![all_conditions([argument_condition(0, SeccompCmpOp::Ne, number(libc::AF_UNIX))])?];
    if !policy.local {
        // The socket type is in the lowest four bits: 1 is a stream, 5 are sequenced packets.
        for (bit, refused) in [(1, 0), (2, 2), (8, 8)] {
            rules.push(all_conditions([argument_condition(
                1,
                SeccompCmpOp::MaskedEq(bit),
                refused,
            )])?);
        }
    }
    Ok(rules)
}

fn argument_condition(
    argument: u8,
    operator: SeccompCmpOp,
    value: u64,
) -> FilterResult<SeccompCondition> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
}

fn all_conditions(
    conditions: impl IntoIterator<Item = FilterResult<SeccompCondition>>,
) -> FilterResult<SeccompRule> {
    SeccompRule::new(conditions.into_iter().collect::<FilterResult<_>>()?)
}

fn add_x32_calls(rules: SyscallRules) -> SyscallRules {
    if !cfg!(target_arch = "x86_64") {
        return rules;
    }
    let twins: Vec<_> = rules.iter().map(|(call, rules)| (call | X32_BIT, rules.clone())).collect();
    rules.into_iter().chain(twins).collect()
}
