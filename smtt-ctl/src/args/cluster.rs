//! Options of `--cluster`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args as ClapArgs;

use super::duration::seconds;
use crate::ssh::Place;

/// Workers to ask together, and how.
#[derive(Clone, Debug, ClapArgs)]
#[command(next_help_heading = "Cluster")]
pub struct ClusterArgs {
    /// Ask the daemons of many workers over their metrics ports ([web] api) instead of this machine's: a file with a
    /// HOST[:PORT] per line, a file of targets for Prometheus (.json, .yml), dns:NAME:PORT (dns4:, dns6: for addresses of
    /// one family), or in a pod kubernetes:NAMESPACE/SERVICE[:PORT] for the endpoints of a service.
    #[arg(long, global = true, env = "SMTT_CLUSTER", value_name = "SPEC")]
    pub cluster: Option<String>,
    /// Ask the daemon on HOST by ssh, through its socket there (--socket): one HOST for any command that asks a daemon,
    /// several, or beside --cluster, for listings. ssh must log in without a question.
    #[arg(
        long,
        global = true,
        value_name = "[USER@]HOST[:PORT]",
        value_parser = Place::parse
    )]
    pub host: Vec<Place>,
    /// Configuration of ssh instead of the user's.
    #[arg(long, global = true, env = "SMTT_SSH_CONFIG", value_name = "PATH")]
    pub ssh_config: Option<PathBuf>,
    /// Folder with the token and the authority (ca.crt) of the service account that reads the endpoints of a service.
    #[arg(
        long,
        global = true,
        env = "SMTT_KUBERNETES_ACCOUNT",
        default_value = crate::cluster::ACCOUNT,
        value_name = "PATH"
    )]
    pub kubernetes_account: PathBuf,
    /// Time for the answer of a worker, in seconds. ssh has 10 s at least to connect.
    #[arg(long, global = true, default_value = "2", value_parser = seconds, value_name = "SECONDS")]
    pub deadline: Duration,
    /// File with the token for the workers.
    #[arg(
        long,
        global = true,
        env = "SMTT_TOKEN_FILE",
        value_name = "PATH",
        conflicts_with = "auth_user"
    )]
    pub token_file: Option<PathBuf>,
    /// Name of a user of the workers' metrics ports.
    #[arg(
        long,
        global = true,
        env = "SMTT_AUTH_USER",
        value_name = "NAME",
        requires = "password_file"
    )]
    pub auth_user: Option<String>,
    /// File with the password of that user.
    #[arg(
        long,
        global = true,
        env = "SMTT_PASSWORD_FILE",
        value_name = "PATH",
        requires = "auth_user"
    )]
    pub password_file: Option<PathBuf>,
    /// File with the certificate authorities of the workers (PEM). Implies --tls.
    #[arg(long, global = true, env = "SMTT_CACERT", value_name = "PATH")]
    pub cacert: Option<PathBuf>,
    /// File with the certificate that workers ask for (PEM).
    #[arg(
        long,
        global = true,
        env = "SMTT_CERT",
        value_name = "PATH",
        requires = "key"
    )]
    pub cert: Option<PathBuf>,
    /// File with the private key of that certificate (PEM).
    #[arg(
        long,
        global = true,
        env = "SMTT_KEY",
        value_name = "PATH",
        requires = "cert"
    )]
    pub key: Option<PathBuf>,
    /// Ask with TLS where SPEC names no scheme.
    #[arg(long, global = true)]
    pub tls: bool,
}

impl ClusterArgs {
    /// Whether workers without a scheme are asked with TLS.
    #[must_use]
    pub const fn is_tls(&self) -> bool {
        self.tls || self.cacert.is_some()
    }
}
