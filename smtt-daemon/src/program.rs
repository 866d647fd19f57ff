//! The program `smtt-daemon`: parse, log, run.

use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::process::ExitCode;

use crate::args::Arguments;
use crate::{event_loop, journal};
use clap::Parser;
use smtt_config::LogFormat;
use smtt_model::log_levels::{LOG_LEVELS, log_levels};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Exit code of a bad configuration, as in sysexits.
const EX_CONFIG: u8 = 78;
/// Exit code of missing permission, as in sysexits.
const EX_NOPERM: u8 = 77;

/// Runs the program with a command line, whose first word is the program's name in messages.
#[must_use]
pub fn main(words: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = Arguments::parse_from(words);
    let mut config = match smtt_config::load(arguments.config.as_deref()) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("smtt-daemon: {error:#}");
            return ExitCode::from(EX_CONFIG);
        }
    };
    if let Some(address) = arguments.listen_address {
        config.web.listen_address = address;
    }
    if let Some(path) = arguments.web_config {
        config.web.config_file = Some(path);
    }
    let format = arguments.log_format.unwrap_or(config.log.format);
    let level = arguments.log_level.as_deref();
    let level = level.unwrap_or(&config.log.level);
    if arguments.check {
        return match check(&config, level) {
            Ok(()) => {
                println!("configuration is good");
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("smtt-daemon: {error:#}");
                ExitCode::from(EX_CONFIG)
            }
        };
    }
    if let Err(error) = start_log(level, format) {
        eprintln!("smtt-daemon: {error}");
        return ExitCode::from(EX_CONFIG);
    }
    // One worker thread: the daemon's work is small and must not spread over the executors' CPUs.
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("smtt-daemon: cannot start its event loop: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(event_loop::run(config, stop_signal())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("smtt-daemon: {error:#}");
            if error.is::<event_loop::WebError>() {
                ExitCode::from(EX_CONFIG)
            } else if error.chain().any(is_permission) {
                ExitCode::from(EX_NOPERM)
            } else {
                ExitCode::FAILURE
            }
        }
    }
}

/// Checks for what the start ends with [`EX_CONFIG`]. Files that the configuration names are loaded as the user who asks.
fn check(config: &smtt_config::Config, level: &str) -> anyhow::Result<()> {
    known_levels(level).map_err(anyhow::Error::msg)?;
    event_loop::check(config)?;
    Ok(())
}

/// Whether a cause of an error is a missing permission.
fn is_permission(cause: &(dyn std::error::Error + 'static)) -> bool {
    cause
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
}

/// The levels that a text names.
fn known_levels(level: &str) -> Result<Targets, String> {
    log_levels(level).ok_or_else(|| format!("log level {level:?} is not one of {LOG_LEVELS}"))
}

/// Starts the log on standard error.
fn start_log(level: &str, format: LogFormat) -> Result<(), String> {
    let levels = known_levels(level)?;
    // aya's log records arrive through the log crate.
    let _ = tracing_log::LogTracer::init();
    let journal = journal::is_journal();
    let lines = journal::Lines {
        json: format == LogFormat::Json,
        journal,
        // A file or a container's log would keep the escape codes of colours.
        coloured: !journal
            && std::io::stderr().is_terminal()
            && std::env::var_os("NO_COLOR").is_none(),
    };
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(lines.coloured)
        .event_format(lines);
    let _ = tracing_subscriber::registry()
        .with(layer)
        .with(levels)
        .try_init();
    Ok(())
}

/// Completes on SIGTERM or SIGINT.
async fn stop_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    match (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) {
        (Ok(mut terminate), Ok(mut interrupt)) => {
            tokio::select! {
                _ = terminate.recv() => tracing::info!("stopping on SIGTERM"),
                _ = interrupt.recv() => tracing::info!("stopping on SIGINT"),
            }
        }
        // Without signal handlers the default action ends the process, which leaves nothing in the kernel either.
        _ => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    use super::check;

    /// What is wrong with a configuration; empty where it is good.
    fn wrong(text: &str) -> String {
        let config = smtt_config::parse(text, Path::new("/etc/smtt/smtt.toml")).expect("parses");
        check(&config, &config.log.level)
            .map_or_else(|error| format!("{error:#}"), |()| String::new())
    }

    #[test]
    fn the_check_loads_what_the_start_loads() {
        assert_eq!(wrong(""), "");
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        let users = format!("[web]\nusers_file = {:?}\n", path("users"));
        let missing = wrong(&users);
        assert!(missing.contains("/users"), "{missing}");
        fs::write(
            path("users"),
            "prometheus:$2b$04$abcdefghijklmnopqrstuusnI7L1HSYPtZYMtMSGhPX9ThORE6qP2\n",
        )
        .expect("written");
        fs::set_permissions(path("users"), Permissions::from_mode(0o644)).expect("set");
        let open = wrong(&users);
        assert!(open.contains("/users"), "{open}");
        fs::set_permissions(path("users"), Permissions::from_mode(0o600)).expect("set");
        assert_eq!(wrong(&users), "");
        let api = wrong("[web]\napi = true\n");
        assert!(!api.is_empty(), "listings without a password");
        let clear = wrong(&format!(
            "{users}api = true\nlisten_address = \"0.0.0.0:1\"\n"
        ));
        assert!(clear.contains("0.0.0.0:1"), "{clear}");
        fs::write(
            path("web.yml"),
            "tls_server_config:\n  cert_file: nowhere.crt\n  key_file: nowhere.key\n",
        )
        .expect("written");
        fs::set_permissions(path("web.yml"), Permissions::from_mode(0o600)).expect("set");
        let tls = wrong(&format!("[web]\nconfig_file = {:?}\n", path("web.yml")));
        assert!(tls.contains("nowhere"), "{tls}");
    }

    #[test]
    fn the_check_refuses_a_level_that_the_log_refuses() {
        let config = smtt_config::parse("", Path::new("/etc/smtt/smtt.toml")).expect("parses");
        assert!(check(&config, "loud").is_err());
    }
}
