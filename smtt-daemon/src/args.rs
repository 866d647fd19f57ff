//! Arguments of `smtt-daemon`.

use std::path::PathBuf;

use clap::Parser;
use smtt_config::LogFormat;

/// Shows which Spark RDD, task and stage makes the memory hardware work.
#[derive(Debug, Parser)]
#[command(name = "smtt-daemon", version)]
pub struct Arguments {
    /// Configuration file. Without it /etc/smtt/smtt.toml is read where it exists, else the defaults hold.
    #[arg(long, alias = "config.file", value_name = "FILE", env = "SMTT_CONFIG")]
    pub config: Option<PathBuf>,
    /// Address of the metrics page, instead of the configured one.
    #[arg(long = "web.listen-address", value_name = "ADDRESS:PORT")]
    pub listen_address: Option<std::net::SocketAddr>,
    /// Web configuration of Prometheus exporters (TLS, users, headers), instead of the configured one.
    #[arg(long = "web.config.file", value_name = "FILE")]
    pub web_config: Option<PathBuf>,
    /// Level of the log: off, error, warn, info, debug, trace, or levels by module (warn,smtt_daemon=debug).
    #[arg(long = "log.level", value_name = "LEVEL", env = "SMTT_LOG")]
    pub log_level: Option<String>,
    /// Form of the log's lines, instead of the configured one.
    #[arg(
        long,
        alias = "log.format",
        value_name = "FORMAT",
        env = "SMTT_LOG_FORMAT"
    )]
    pub log_format: Option<LogFormat>,
    /// Check the configuration and load the files that it names for the metrics port, say what is wrong, and exit. Ask as
    /// the service's user: it may read less than root.
    #[arg(long)]
    pub check: bool,
}
