//! Denials: one line for the model about what the sandbox refused, why, and what would allow it.
//!
//! A command that is refused something says so in its own words; these are the usual ones.

use super::confined::Needs;
use crate::sandbox::Profile;

/// What programs say when there is no network.
const NO_NETWORK: &[&str] = &[
    "could not resolve host",
    "couldn't resolve host",
    "temporary failure in name resolution",
    "name or service not known",
    "network is unreachable",
    "failed to lookup address",
    "getaddrinfo",
    "enotfound",
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

/// What programs say when there are too many of them, or too much in a file.
const NO_MORE: &[&str] =
    &["fork: retry: resource temporarily unavailable", "file size limit exceeded"];

/// The lines for a failed command, if the sandbox may be the reason.
pub fn explain(output: &str, needs: Needs, may_declare: bool) -> Vec<String> {
    let output = output.to_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| output.contains(word));
    let mut lines = Vec::new();
    if !needs.network && says(NO_NETWORK) {
        lines.push(match (needs.profile, may_declare) {
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
    if says(NO_MORE) {
        lines.push("sandbox: processes and file sizes are limited; the user can raise that (sandbox.max_processes, sandbox.max_file_bytes)");
    }
    lines.into_iter().map(str::to_owned).collect()
}
