//! Sandbox denials: one line each about what the sandbox refused, why, and which setting would allow it.
//!
//! Denials are recognised by the usual error messages of programs. The lines are for the model; lines about
//! rights that only the user can grant are shown to the user as well.

use std::path::Path;

use super::sandboxed::SandboxNeeds;
use crate::host::sandbox::{HiddenPath, HiddenPaths, Profile};

/// Messages of programs without network.
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

/// Messages of programs that may not write or read a file.
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

/// Names of other programs' sockets in messages.
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

/// Messages of programs that cannot connect to a socket in [`SOCKET_NAMES`].
const NO_SOCKET: &[&str] =
    &["connect", "refused", "no such file", "open display", "permission denied"];

/// Messages of programs that may not create a socket.
const NO_SOCKETS_AT_ALL: &[&str] = &["permission denied", "eacces", "permissionerror"];

/// Messages of ssh without a key or without known hosts.
const NO_SSH_KEY: &[&str] =
    &["permission denied (publickey", "host key verification failed", "no such identity"];

/// The maximum number of paths in an output that are resolved.
const MAX_PATHS: usize = 64;

/// The characters that delimit a path in a message.
const PATH_DELIMITERS: &[char] =
    &['\'', '"', '`', ':', ';', ',', '(', ')', '<', '>', '|', '\u{2018}', '\u{2019}'];

/// A line about something that the sandbox refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    pub text: String,
    /// Whether the line is shown to the user too, because only the user can allow the access.
    pub is_for_user: bool,
}

/// The rights that the call would get by declaring them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeclarableRights {
    pub network: bool,
    pub sockets: bool,
}

/// The lines for a failed command, if the sandbox may be the reason.
pub fn explain_denials(
    output: &str,
    needs: SandboxNeeds,
    may_declare: DeclarableRights,
    hidden: &HiddenPaths,
    directory: &Path,
) -> Vec<Denial> {
    let for_model = |text: &&str| Denial { text: (*text).to_owned(), is_for_user: false };
    let for_user = hidden_lines(output, hidden, directory);
    let is_found = !for_user.is_empty();
    let for_user = for_user.into_iter().map(|text| Denial { text, is_for_user: true });
    denial_lines(output, needs, may_declare, is_found)
        .iter()
        .map(for_model)
        .chain(for_user)
        .collect()
}

/// Lines about hidden files that the output names, and about keys that ssh could not read.
fn hidden_lines(output: &str, hidden: &HiddenPaths, directory: &Path) -> Vec<String> {
    let path = hidden.find(output).or_else(|| find_hidden_by_path(output, hidden, directory));
    if let Some(path) = path {
        return vec![match path {
            HiddenPath::Credential(path) => format!(
                "sandbox: {} is hidden from commands, because it holds credentials; only the user can use it, or show it by naming it in sandbox.read",
                path.display()
            ),
            HiddenPath::InHome(path) => format!(
                "sandbox: {} is hidden from commands; the user can show it with sandbox.read",
                path.display()
            ),
        }];
    }
    let output = output.to_lowercase();
    let is_without_key = NO_SSH_KEY.iter().any(|words| output.contains(words));
    if is_without_key && hidden.find("~/.ssh").is_some() {
        return vec![
            "sandbox: ~/.ssh is hidden from commands, so ssh finds neither keys nor known hosts; the user can show them by naming the files in sandbox.read, such as ~/.ssh/id_ed25519 and ~/.ssh/known_hosts".to_owned(),
        ];
    }
    Vec::new()
}

/// The first hidden file that the output names by a relative path or a symbolic link.
fn find_hidden_by_path(output: &str, hidden: &HiddenPaths, directory: &Path) -> Option<HiddenPath> {
    let words =
        output.split(|letter: char| letter.is_whitespace() || PATH_DELIMITERS.contains(&letter));
    let words = words.filter(|word| !word.is_empty());
    let is_path = |word: &&str| {
        let is_link = || directory.join(word).symlink_metadata().is_ok_and(|own| own.is_symlink());
        word.contains('/') || is_link()
    };
    let ends = words.filter(is_path).take(MAX_PATHS);
    let mut ends = ends.filter_map(|word| directory.join(word).canonicalize().ok());
    ends.find_map(|end| hidden.find(&end.to_string_lossy()))
}

/// Lines about other refusals; `is_explained` if a hidden file is the reason for a refused access.
fn denial_lines(
    output: &str,
    needs: SandboxNeeds,
    may_declare: DeclarableRights,
    is_explained: bool,
) -> Vec<&'static str> {
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
    if says(NO_ACCESS) && !is_explained {
        lines.push(match needs.profile {
            Profile::ReadOnly => {
                "sandbox: nothing but $TMPDIR can be written, because this Session is read-only; only the user can change that"
            }
            _ => {
                "sandbox: if this was a refused access: only the workspace and $TMPDIR can be written, not .pixir, .git/hooks, .git/config, and credentials cannot be read; the user can add folders (sandbox.write)"
            }
        });
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(output: &str, profile: Profile, network: bool, expected: &[&str]) {
        let mut hidden = HiddenPaths::default();
        hidden.hidden.push("/home/me/.ssh".into());
        let needs = SandboxNeeds { profile, network, local_sockets: false };
        let may_declare = DeclarableRights { network: true, sockets: false };
        let lines = explain_denials(output, needs, may_declare, &hidden, Path::new("/work"));
        assert_eq!(lines.len(), expected.len(), "{output}: {lines:?}");
        for (line, words) in lines.iter().zip(expected) {
            assert!(line.text.contains(words), "{output}: {line:?}");
            assert_eq!(line.is_for_user, line.text.contains("is hidden"), "{line:?}");
        }
    }

    #[test]
    fn a_denial_is_explained_in_one_line_and_an_ordinary_failure_in_none() {
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
        let may_declare = DeclarableRights { network: true, sockets: true };
        for (profile, local_sockets, is_explained) in
            [(own, false, true), (own, true, false), (Profile::ReadOnly, false, false)]
        {
            let needs = SandboxNeeds { profile, network: false, local_sockets };
            let none = HiddenPaths::default();
            let lines = explain_denials(refused, needs, may_declare, &none, Path::new("/work"));
            assert_eq!(lines[0].text.contains("local_sockets: true"), is_explained, "{lines:?}");
        }
        let both = "getaddrinfo EAI_AGAIN\nEROFS: read-only file system";
        check(both, own, false, &["network: true", "sandbox.write"]);
    }
}
