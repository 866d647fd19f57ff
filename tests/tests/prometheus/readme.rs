//! README's commands for the host of Prometheus, with another folder in place of `/etc/prometheus`, this user in place of
//! Prometheus', and no reload: Prometheus starts after them.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use xtask::http;
use xtask::paths::Paths;
use xtask::process::output;

use crate::server::Prometheus;
use crate::settled;

const THERE: &str = "/etc/prometheus";

/// The block of README.
fn block(readme: &str) -> Result<&str> {
    let mut blocks = readme.split("\n```").skip(1).step_by(2);
    let block = blocks.find(|block| block.contains("cp -r prometheus"));
    // The first line has the block's language.
    let (_, lines) = block
        .and_then(|block| block.split_once('\n'))
        .context("no block for the host of Prometheus")?;
    Ok(lines)
}

/// The rules are loaded, and the worker is scraped over TLS with the password. Its certificate is in `folder`.
pub(crate) fn commands_load_rules_and_scrape(
    paths: &Paths,
    programs: &Path,
    folder: &Path,
    worker: SocketAddr,
    password: &str,
) -> Result<()> {
    let readme = fs::read_to_string(paths.root.join("README.md"))?;
    let block = block(&readme)?;
    let asked = "rule_files and the job of smtt/scrape/tls.yml, with your workers as its targets";
    ensure!(block.contains(asked), "{block}");

    // What was brought from a worker.
    let brought = folder.join("brought");
    let here = folder.join("etc");
    for folder in [&brought, &here] {
        fs::create_dir(folder)?;
    }
    fs::copy(folder.join("server.crt"), brought.join("ca.crt"))?;
    fs::write(brought.join("password"), password)?;
    let packaging = paths.root.join("packaging/prometheus");
    output(Command::new("cp").arg("-r").args([&packaging, &brought]))?;

    // What a reader writes by the comment between the commands.
    let text = fs::read_to_string(packaging.join("scrape/tls.yml"))?;
    let targets = "\"worker-1:10871\", \"worker-2:10871\"";
    ensure!(text.contains(targets), "{text}");
    let etc = here.display().to_string();
    let config = text
        .replace(targets, &format!("{:?}", worker.to_string()))
        .replace(THERE, &etc);
    fs::write(here.join("prometheus.yml"), &config)?;

    let mut script = block.replace(THERE, &etc);
    for (there, here) in [
        ("install -o prometheus ", "install -o $(id -u) "),
        ("systemctl reload prometheus", "true"),
    ] {
        ensure!(script.contains(there), "no {there} in {script}");
        script = script.replace(there, here);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = std::iter::once(programs.to_owned()).chain(std::env::split_paths(&path));
    let mut shell = Command::new("sh");
    shell
        .args(["-e", "-c", &script])
        .current_dir(&brought)
        .env("PATH", std::env::join_paths(all)?);
    let said = output(&mut shell)?;
    ensure!(said.contains("SUCCESS"), "{said}");
    let secret = fs::metadata(here.join("smtt-password"))?;
    ensure!(secret.permissions().mode() & 0o777 == 0o600);

    let prometheus = Prometheus::with_config(programs, &here, &config)?;
    let answer: Value = serde_json::from_str(&http::get(prometheus.port, "/api/v1/rules")?)?;
    let groups = answer["data"]["groups"].as_array().context("no groups")?;
    let rules = groups.iter().filter_map(|group| group["rules"].as_array());
    let rules: usize = rules.map(Vec::len).sum();
    ensure!(rules >= 20, "{rules} rules");
    settled("the worker is scraped as README says", &|| {}, || {
        for (expression, expected) in [("up{job=\"smtt\"}", 1.0), ("count(smtt_build_info)", 1.0)] {
            let seen = prometheus.number(expression, None)?;
            ensure!(seen == expected, "{expression} is {seen}");
        }
        Ok(())
    })
}
