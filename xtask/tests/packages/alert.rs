//! README's "Get an alert" on an installed worker, with the commands of the documents: a certificate, a password, the
//! port for other machines and the unit's drop-in. Prometheus' part is in `tests/tests/prometheus`.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use xtask::paths::Paths;

use crate::life::{Said, Step};

/// A password of the user `prometheus`.
const PASSWORD: &str = "of-prometheus";
/// An address of the machine that is not loopback, and the name of the documents for it.
const ADDRESS: &str = "10.0.0.1";
const WORKER: &str = "worker-1";

/// The last block of a document that has this text, without its fence.
pub fn block(document: &str, text: &str) -> Result<String> {
    let blocks = document.split("\n```").skip(1).step_by(2);
    let found = blocks.filter(|block| block.contains(text)).last();
    let found = found.with_context(|| format!("no block has {text:?}"))?;
    // The first line has the block's language.
    let (_, lines) = found.split_once('\n').context("a block without lines")?;
    Ok(lines.to_owned())
}

/// The steps, in the order of the documents.
pub fn steps(paths: &Paths) -> Result<Vec<Step>> {
    let readme = fs::read_to_string(paths.root.join("README.md"))?;
    let security = fs::read_to_string(paths.root.join("docs/SECURITY.md"))?;
    let in_folder =
        |commands: &str| format!("mkdir -p /root/tls && cd /root/tls && ( set -e; {commands}\n)");
    let authority = block(&security, "-keyout ca.key")?;
    let certificate = block(&security, "-copy_extensions")?;
    let web = block(&security, "# htpasswd -nB prometheus")?;
    let hash = "$2y$10$...";
    ensure!(web.contains(hash), "{web}");
    let web = format!(
        "htpasswd -nbB prometheus {PASSWORD} > line && cat > web.yml <<'END'\n{web}\nEND\n\
         sed -i \"s|{}.*|$(cut -d: -f2 line)|\" web.yml; cat web.yml",
        hash.replace('$', "\\$").replace('.', "[.]")
    );
    let put = block(&security, "server.key server.crt web.yml")?;

    let settings = block(&readme, "config_file = \"/etc/smtt/web.yml\"")?;
    let mut change = String::new();
    for line in settings.lines().filter(|line| line.contains(" = ")) {
        let (key, _) = line.split_once(" = ").context("a setting")?;
        let value = line.split(" #").next().unwrap_or(line).trim_end();
        change += &format!(
            "sed -i 's|^{key} = .*|{value}|' /etc/smtt/smtt.toml; grep -q '^{value}$' /etc/smtt/smtt.toml || exit 1; "
        );
    }
    let open = block(&readme, "IPAddressAllow=")?;
    let curl = format!(
        "curl --silent --show-error --max-time 10 --cacert /root/tls/ca.crt https://{WORKER}:10871"
    );
    let known = format!("{curl}/metrics --user prometheus:{PASSWORD}");
    Ok(vec![
        ("authority", in_folder(&authority)),
        ("certificate", in_folder(&certificate)),
        ("web.yml", in_folder(&web)),
        // Settings first: the check reads them.
        ("settings", change),
        ("installed files", in_folder(&put)),
        (
            "closed",
            format!(
                "ip address add {ADDRESS}/32 dev lo && echo '{ADDRESS} {WORKER}' >> /etc/hosts && \
                 systemctl restart smtt && wait_for systemctl is-active --quiet smtt && sleep 3; {known}"
            ),
        ),
        (
            "open",
            format!("( set -e; {open}\n) && wait_for systemctl is-active --quiet smtt"),
        ),
        (
            "scraped",
            format!(
                "for n in $(seq 120); do {known} > /answer; grep -q 'rdd=\"cached arrays\"' /answer && break; sleep 1; done; \
                 grep 'rdd=\"cached arrays\"' /answer"
            ),
        ),
        (
            "without the password",
            format!("{curl}/metrics --output /dev/null --write-out '%{{http_code}}\\n'"),
        ),
        (
            "in clear text",
            format!("curl --silent --max-time 10 http://{WORKER}:10871/metrics | grep smtt_"),
        ),
        (
            "alive",
            format!(
                "{curl}/-/healthy --user prometheus:{PASSWORD} --output /dev/null --write-out '%{{http_code}}\\n'"
            ),
        ),
    ])
}

/// Removes what the administrator made, which a purge leaves.
pub const UNDONE: &str = "rm -r /etc/systemd/system/smtt.service.d /root/tls && \
     rm /etc/smtt/server.key /etc/smtt/server.crt /etc/smtt/web.yml && rmdir /etc/smtt";

/// Compares what the steps printed.
pub fn check(said: &Said) -> Result<()> {
    for step in [
        "authority",
        "certificate",
        "web.yml",
        "settings",
        "installed files",
        "open",
    ] {
        said.ended(step, 0)?;
    }
    let web = said.ended("web.yml", 0)?;
    ensure!(web.contains("prometheus: $2y$"), "{web}");
    let checked = said.ended("installed files", 0)?;
    ensure!(checked.contains("configuration is good"), "{checked}");
    // 28: nothing came in time. The unit lets only this machine's loopback addresses in.
    said.ended("closed", 28)?;
    let scraped = said.ended("scraped", 0)?;
    ensure!(scraped.contains("application_id=\"local-"), "{scraped}");
    ensure!(said.ended("without the password", 0)?.trim() == "401");
    said.ended("in clear text", 1)?;
    ensure!(said.ended("alive", 0)?.trim() == "200");
    Ok(())
}
