//! Levels of a program's log, as configurations and `SMTT_LOG` write them.

use tracing_subscriber::filter::{LevelFilter, Targets};

/// What such a text may be, for messages.
pub const LOG_LEVELS: &str =
    "off, error, warn, info, debug, trace, or levels by module (warn,smtt_daemon=debug)";

/// A level of the log, or levels by module (`warn,smtt_daemon=debug`). A single word that is no level would be a module,
/// and everything of it would be logged: it is refused. The level of modules that are not named is that of errors where
/// the text has none.
#[must_use]
pub fn log_levels(text: &str) -> Option<Targets> {
    let level = |part: &str| {
        part.parse::<LevelFilter>()
            .ok()
            .filter(|_| !part.is_empty())
    };
    text.split(',')
        .map(str::trim)
        .try_fold(Targets::new(), |levels, part| match part.split_once('=') {
            // No spans in brackets: the programs have none.
            Some((module, of)) if !module.is_empty() && !module.contains('[') => {
                Some(levels.with_target(module, level(of)?))
            }
            Some(_) => None,
            None => Some(levels.with_default(level(part)?)),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_has_levels_by_module() {
        let levels = log_levels("warn, smtt_daemon=debug,hyper=off").expect("levels");
        for (module, level, is_logged) in [
            ("smtt_daemon::ring", LevelFilter::DEBUG, true),
            ("smtt_daemon", LevelFilter::TRACE, false),
            ("hyper::proto", LevelFilter::ERROR, false),
            ("axum", LevelFilter::WARN, true),
            ("axum", LevelFilter::INFO, false),
        ] {
            let level = level.into_level().expect("not off");
            assert_eq!(levels.would_enable(module, &level), is_logged, "{module}");
        }
        let levels = log_levels("info").expect("a level");
        assert_eq!(levels.default_level(), Some(LevelFilter::INFO));
    }

    #[test]
    fn what_is_no_level_is_refused() {
        for text in [
            "",
            "loud",
            "info,",
            "info,loud",
            "=info",
            "a=loud",
            "[span]=info",
        ] {
            assert!(log_levels(text).is_none(), "{text:?}");
        }
    }
}
