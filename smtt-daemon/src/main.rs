//! `smtt-daemon`: parse, log, run.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use smtt_daemon::event_loop;
use tracing_subscriber::EnvFilter;

/// Shows which Spark RDD, task and stage makes the memory hardware work.
#[derive(Parser)]
#[command(name = "smtt-daemon", version)]
struct Arguments {
    /// Configuration file. Without it /etc/smtt/smtt.toml is read where it exists, else the defaults hold.
    #[arg(long, alias = "config.file", value_name = "FILE", env = "SMTT_CONFIG")]
    config: Option<PathBuf>,
    /// Address of the metrics page, instead of the configured one.
    #[arg(long = "web.listen-address", value_name = "ADDRESS:PORT")]
    listen_address: Option<std::net::SocketAddr>,
    /// Level of the log: error, warn, info, debug, trace, or tracing's own filter syntax.
    #[arg(long = "log.level", value_name = "LEVEL", env = "SMTT_LOG")]
    log_level: Option<String>,
    /// Check the configuration, say what is wrong with it, and exit.
    #[arg(long)]
    check: bool,
}

/// Exit code of a bad configuration, as in sysexits.
const EX_CONFIG: u8 = 78;
/// Exit code of missing permission, as in sysexits.
const EX_NOPERM: u8 = 77;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut config = match smtt_config::load(arguments.config.as_deref()) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("smtt-daemon: {error:#}");
            return ExitCode::from(EX_CONFIG);
        }
    };
    if arguments.check {
        println!("configuration is good");
        return ExitCode::SUCCESS;
    }
    if let Some(address) = arguments.listen_address {
        config.web.listen_address = address;
    }
    if let Err(error) = start_log(arguments.log_level.as_deref().unwrap_or(&config.log.level)) {
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
            if error.is::<smtt_daemon::server::UsersError>() {
                ExitCode::from(EX_CONFIG)
            } else if error.chain().any(is_permission) {
                ExitCode::from(EX_NOPERM)
            } else {
                ExitCode::FAILURE
            }
        }
    }
}

/// Whether a cause of an error is a missing permission.
fn is_permission(cause: &(dyn std::error::Error + 'static)) -> bool {
    cause
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
}

/// Starts the log on standard error, without times where the journal adds its own.
fn start_log(level: &str) -> Result<(), String> {
    let filter = EnvFilter::try_new(level).map_err(|error| {
        format!("log level {level:?} is not one of error, warn, info, debug, trace: {error}")
    })?;
    // aya's log records arrive through the log crate.
    let _ = tracing_log::LogTracer::init();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false);
    if std::env::var_os("JOURNAL_STREAM").is_some() {
        let _ = builder.without_time().with_ansi(false).try_init();
    } else {
        let _ = builder.try_init();
    }
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
