//! Denials: one line for the model about what the sandbox refused, why, and what would allow it.
//!
//! A command that is refused something says so in its own words; these are the usual ones.

use super::confined::Needs;
use crate::sandbox::{HiddenPath, HiddenPaths, Profile};

/// What programs say when there is no network.
const NO_NETWORK: &[&str] = &[
    "could not resolve host",
    "couldn't resolve host",
    "temporary failure in name resolution",
    "name or service not known",
    "network is unreachable",
    "failed to lookup address",
    "getaddrinfo",
    " enotfound",
    "eai_again",
    "enetunreach",
    "nodename nor servname",
    "no address associated with hostname",
    "failed to connect to",
    "could not connect to",
    "name resolution",
    "unable to resolve",
    "no such host",
    "dial tcp",
    "connection refused",
    "econnrefused",
];

/// What programs say when something may not be written or read.
const NO_ACCESS: &[&str] = &[
    "read-only file system",
    "permission denied",
    "operation not permitted",
    "permissionerror",
    "eacces",
    "erofs",
    "eperm",
    "device or resource busy",
    "resource busy or locked",
    "cross-device link",
];

/// How programs name the sockets of others.
const SOCKET_NAMES: &[&str] = &[
    ".sock",
    "unix:/",
    "unix socket",
    "unix domain socket",
    "ssh_auth_sock",
    "gpg-agent",
    "d-bus",
    "dbus",
    "docker daemon",
    "open display",
];

/// What programs say when such a socket is not to be had.
const NO_SOCKET: &[&str] =
    &["connect", "refused", "no such file", "open display", "permission denied"];

/// What programs say when a socket may not even be made.
const NO_SOCKETS_AT_ALL: &[&str] = &["permission denied", "eacces", "permissionerror"];

/// What a call could have declared, and would have got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MayDeclare {
    pub network: bool,
    pub sockets: bool,
}

/// The lines for a failed command, if the sandbox may be the reason.
pub fn explain(
    output: &str,
    needs: Needs,
    may_declare: MayDeclare,
    hidden: &HiddenPaths,
) -> Vec<String> {
    let covered = hidden.find(output);
    let output = output.to_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| output.contains(word));
    let mut lines = Vec::new();
    let wants_socket =
        (says(SOCKET_NAMES) && says(NO_SOCKET)) || (says(&["socket"]) && says(NO_SOCKETS_AT_ALL));
    let may_have_sockets =
        may_declare.sockets && !needs.local_sockets && needs.profile == Profile::Workspace;
    if wants_socket && may_have_sockets {
        lines.push("sandbox: Unix sockets cannot be used here, because those of other programs cannot be hidden and the call did not declare it; if it needs them, repeat it with local_sockets: true");
    } else if wants_socket {
        lines.push("sandbox: sockets of programs outside the workspace cannot be reached (docker, agents, D-Bus, displays), and where the sandbox is partial none can be made; only the user can use them");
    } else if !needs.network && says(NO_NETWORK) {
        lines.push(match (needs.profile, may_declare.network) {
            (Profile::ReadOnly, _) => {
                "sandbox: there is no network, because this Session is read-only; only the user can change that"
            }
            (_, true) => {
                "sandbox: there was no network, because the call did not declare it; repeat it with network: true"
            }
            (_, false) => {
                "sandbox: there is no network, because the user's settings deny it (sandbox.network)"
            }
        });
    }
    if let Some(path) = covered {
        let line = match path {
            HiddenPath::Credential(path) => format!(
                "sandbox: {} is hidden from commands, because it holds credentials; only the user can use it, or show it by naming it in sandbox.read",
                path.display()
            ),
            HiddenPath::InHome(path) => format!(
                "sandbox: {} is hidden from commands; the user can show it with sandbox.read",
                path.display()
            ),
        };
        return lines.into_iter().map(str::to_owned).chain([line]).collect();
    }
    if says(NO_ACCESS) {
        lines.push(match needs.profile {
            Profile::ReadOnly => {
                "sandbox: nothing but $TMPDIR can be written, because this Session is read-only; only the user can change that"
            }
            _ => {
                "sandbox: if this was a refused access: only the workspace and $TMPDIR can be written, not .pixir, .git/hooks, .git/config, and credentials cannot be read; the user can add folders (sandbox.write)"
            }
        });
    }
    lines.into_iter().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(output: &str, profile: Profile, network: bool, expected: &[&str]) {
        let mut hidden = HiddenPaths::default();
        hidden.hidden.push("/home/me/.ssh".into());
        let needs = Needs { profile, network, local_sockets: false };
        let may_declare = MayDeclare { network: true, sockets: false };
        let lines = explain(output, needs, may_declare, &hidden);
        assert_eq!(lines.len(), expected.len(), "{output}: {lines:?}");
        for (line, words) in lines.iter().zip(expected) {
            assert!(line.contains(words), "{output}: {line}");
        }
    }

    #[test]
    fn a_refusal_is_told_in_one_line_and_an_ordinary_failure_in_none() {
        let own = Profile::Workspace;
        check("error[E0308]: mismatched types", own, false, &[]);
        check("curl: (6) Could not resolve host: x", own, false, &["network: true"]);
        check("curl: (6) Could not resolve host: x", own, true, &[]);
        check("npm ERR! code EAI_AGAIN", Profile::ReadOnly, false, &["read-only"]);
        check("touch: /x: Read-only file system", own, false, &["sandbox.write"]);
        check("cat: /home/me/.ssh/id: No such file", own, false, &["is hidden from commands"]);
        let docker =
            "Cannot connect to the Docker daemon at unix:///home/me/.docker/run/docker.sock";
        check(docker, own, false, &["sockets of programs outside"]);
        check("curl: (7) Failed to connect to /srv/x.sock", own, true, &["sockets of programs"]);
        let refused = "in socket.py\nPermissionError: [Errno 13] Permission denied";
        check(refused, own, false, &["sockets of programs outside", "sandbox.write"]);
        check("listening on tmp/x.sock\n2 tests failed", own, false, &[]);
        let may_declare = MayDeclare { network: true, sockets: true };
        for (profile, local_sockets, is_told) in
            [(own, false, true), (own, true, false), (Profile::ReadOnly, false, false)]
        {
            let needs = Needs { profile, network: false, local_sockets };
            let lines = explain(refused, needs, may_declare, &HiddenPaths::default());
            assert_eq!(lines[0].contains("local_sockets: true"), is_told, "{lines:?}");
        }
        let both = "getaddrinfo EAI_AGAIN\nEROFS: read-only file system";
        check(both, own, false, &["network: true", "sandbox.write"]);
    }
}
