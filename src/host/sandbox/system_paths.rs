//! System paths: credentials that no command may read, and folders that no setting makes writable.

use std::path::{Path, PathBuf};

/// Credentials of the system; most of them are readable only for root anyway.
const SYSTEM_CREDENTIALS: &[&str] = &[
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/security/opasswd",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/krb5.keytab",
    "/etc/ssl/private",
    "/etc/pki/tls/private",
    "/etc/letsencrypt",
    "/etc/ssh/ssh_host_dsa_key",
    "/etc/ssh/ssh_host_ecdsa_key",
    "/etc/ssh/ssh_host_ed25519_key",
    "/etc/ssh/ssh_host_rsa_key",
    "/etc/ppp/chap-secrets",
    "/etc/ppp/pap-secrets",
    "/etc/wireguard",
    "/etc/openvpn",
    "/etc/ipsec.secrets",
    "/etc/ipsec.d/private",
    "/etc/NetworkManager/system-connections",
    "/etc/netplan",
    "/etc/wpa_supplicant",
    "/etc/docker/key.json",
    "/etc/docker/certs.d",
    "/etc/containers/auth.json",
    "/etc/kubernetes",
    "/etc/rancher",
    "/etc/vault.d",
    "/etc/cloudflared",
    "/etc/mysql/debian.cnf",
    "/etc/boto.cfg",
    "/etc/msmtprc",
    "/etc/exim4/passwd.client",
    "/etc/postfix/sasl_passwd",
    "/etc/credstore",
    "/etc/credstore.encrypted",
    "/run/secrets",
    "/run/credentials",
    "/run/user",
    "/var/backups",
    "/var/mail",
    "/var/spool/cron",
    "/var/spool/mail",
    "/var/lib/NetworkManager",
    "/var/lib/bluetooth",
    "/var/lib/cloud",
    "/var/lib/containerd",
    "/var/lib/containers",
    "/var/lib/docker",
    "/var/lib/iwd",
    "/var/lib/kubelet",
    "/var/lib/rancher",
    "/var/lib/samba/private",
    "/var/lib/sss",
    "/var/lib/tailscale",
];

/// Files and folders of the home from which programs are started or configured; no setting makes them writable.
const NEVER_WRITABLE_IN_HOME: &[&str] = &[
    "bin",
    ".bin",
    ".config",
    ".local/bin",
    ".cargo/bin",
    ".cargo/config.toml",
    ".cargo/config",
    ".npmrc",
    ".ssh",
    ".gnupg",
    ".bashrc",
    ".profile",
    ".zshrc",
];

/// Folders of the system that no setting makes writable.
const NEVER_WRITABLE_IN_SYSTEM: &[&str] =
    &["/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/sbin", "/sys", "/usr"];

/// The paths of system credentials.
pub fn system_credentials() -> impl Iterator<Item = PathBuf> {
    SYSTEM_CREDENTIALS.iter().map(PathBuf::from)
}

/// Whether a path is a system credential, is in a folder of them, or is a folder above one.
pub fn overlaps_system_credentials(path: &Path) -> bool {
    SYSTEM_CREDENTIALS.iter().any(|own| path.starts_with(own) || Path::new(own).starts_with(path))
}

/// The reason why a configured root cannot be writable; `None` when it can.
pub fn write_objection(root: &Path, home: Option<&Path>, state: &Path) -> Option<String> {
    let own = NEVER_WRITABLE_IN_HOME.iter().filter_map(|name| Some(home?.join(name)));
    let of_system = NEVER_WRITABLE_IN_SYSTEM.iter().map(PathBuf::from);
    // Pixir's folder is skipped when it contains the whole home.
    let state =
        Some(state.to_owned()).filter(|state| home.is_none_or(|home| !home.starts_with(state)));
    let mut forbidden = own.chain(of_system).chain(state);
    let overlap = |other: &PathBuf| root.starts_with(other) || other.starts_with(root);
    let found = forbidden.find(overlap)?;
    Some(format!("{} cannot be writable: it overlaps {}", root.display(), found.display()))
}
