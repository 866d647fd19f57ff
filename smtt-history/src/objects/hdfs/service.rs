//! The client of an HDFS, which asks a NameNode first that answers.
//!
//! The library goes to the next NameNode of a name service after an error only, and sets no time limit to an answer. So each
//! NameNode is asked something small under a limit before the client is made. A client whose request had no answer is not
//! used again: the next one is made in the same way.

use std::collections::HashMap;
use std::env;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use futures_util::future::select_ok;
use hdfs_native::{Client, ClientBuilder, HdfsError};
use tokio::runtime::Builder;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use url::Url;

use super::{PORT, SETTINGS};

type Result<T> = std::result::Result<T, HdfsError>;

/// How long NameNodes are asked until one answers.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time limit of the first connection with its answer. Each try has twice that of the one before.
const ANSWER: Duration = Duration::from_secs(3);
/// Pause between tries.
const PAUSE: Duration = Duration::from_secs(1);

/// A NameNode, or the NameNodes of a name service.
#[derive(Clone)]
struct Service {
    address: Url,
    name: String,
    /// Empty where there is nothing to choose.
    ids: Vec<String>,
}

/// Properties in the configuration's files. It is empty where they cannot be read: the library says why.
fn properties() -> HashMap<String, String> {
    let home = || Some(PathBuf::from(env::var_os("HADOOP_HOME")?).join("etc/hadoop"));
    let folder = env::var_os("HADOOP_CONF_DIR").map(PathBuf::from);
    let mut found = HashMap::new();
    if let Some(folder) = folder.or_else(home) {
        for file in ["core-site.xml", "hdfs-site.xml"] {
            let text = fs::read_to_string(folder.join(file));
            found.extend(text.map(|text| properties_of(&text)).unwrap_or_default());
        }
    }
    found
}

fn properties_of(text: &str) -> Vec<(String, String)> {
    let options = roxmltree::ParsingOptions {
        allow_dtd: true,
        ..Default::default()
    };
    let Ok(tree) = roxmltree::Document::parse_with_options(text, options) else {
        return Vec::new();
    };
    let properties = tree.descendants().filter(|it| it.has_tag_name("property"));
    let found = properties.filter_map(|it| {
        let of = |tag: &str| it.children().find(|it| it.has_tag_name(tag))?.text();
        Some((of("name")?.to_owned(), of("value")?.to_owned()))
    });
    found.collect()
}

/// The ids of a name service's NameNodes.
fn ids(name: &str, properties: &HashMap<String, String>) -> Vec<String> {
    let ids = properties.get(&format!("dfs.ha.namenodes.{name}"));
    let ids = ids.map_or("", String::as_str).split(',').map(str::trim);
    let has_address =
        |id: &&str| properties.contains_key(&format!("dfs.namenode.rpc-address.{name}.{id}"));
    ids.filter(has_address).map(str::to_owned).collect()
}

impl Service {
    fn of(address: &Url) -> Self {
        let name = address.host_str().unwrap_or_default().to_owned();
        let mut ids = match address.port() {
            None => ids(&name, &properties()),
            Some(_) => Vec::new(),
        };
        if ids.len() < 2 {
            ids.clear();
        }
        Self {
            address: address.clone(),
            name,
            ids,
        }
    }

    /// Makes a client of these NameNodes, without a request.
    fn client(&self, ids: &[&str], more: &[(&str, &str)]) -> Result<Client> {
        let owned = |it: &(&str, &str)| (it.0.to_owned(), it.1.to_owned());
        let mut settings: Vec<_> = SETTINGS.iter().chain(more).map(owned).collect();
        if !ids.is_empty() {
            let name = &self.name;
            settings.push((format!("dfs.ha.namenodes.{name}"), ids.join(",")));
            let order = format!("dfs.client.failover.random.order.{name}");
            settings.push((order, false.to_string()));
        }
        let make = |address: &Url| {
            let client = ClientBuilder::new().with_url(address.as_str());
            client.with_config(settings.clone()).build()
        };
        match make(&self.address) {
            // No name service has this name, so it is a host.
            Err(HdfsError::InvalidArgument(_)) if self.address.port().is_none() => {
                let mut with_port = self.address.clone();
                // An address with a host can have a port.
                let _ = with_port.set_port(Some(PORT));
                make(&with_port)
            }
            made => made,
        }
    }

    /// Asks one NameNode, once. It answers also where it says that something is wrong.
    async fn ask(&self, ids: &[&str], limit: Duration) -> Result<()> {
        let client = self.client(ids, &[("dfs.client.failover.max.attempts", "0")])?;
        match timeout(limit, client.get_file_info("/")).await {
            Err(_) => {
                let said = format!("silent for {} s", limit.as_secs());
                Err(io::Error::new(io::ErrorKind::TimedOut, said).into())
            }
            Ok(Err(trouble)) if is_away(&trouble) => Err(trouble),
            Ok(_) => Ok(()),
        }
    }

    /// The NameNodes in their order, first one that answers. A thread has the connections, which are closed when it ends.
    async fn order(&self, limit: Duration) -> Result<Vec<String>> {
        let service = self.clone();
        let asked = spawn_blocking(move || {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let found = runtime.block_on(async {
                if service.ids.is_empty() {
                    return service.ask(&[], limit).await.map(|()| Vec::new());
                }
                let asked = service.ids.iter().map(|id| {
                    let service = &service;
                    Box::pin(async move { service.ask(&[id], limit).await.map(|()| id) })
                });
                let (first, _) = select_ok(asked).await?;
                let others = service.ids.iter().filter(|it| *it != first);
                Ok([first].into_iter().chain(others).cloned().collect())
            });
            // A search for a host's address may take longer.
            runtime.shutdown_background();
            found
        });
        asked.await.map_err(io::Error::other)?
    }
}

/// Whether another NameNode may answer, or the same one later.
fn is_away(trouble: &HdfsError) -> bool {
    match trouble {
        HdfsError::IOError(_) => true,
        HdfsError::RPCError(class, _) | HdfsError::FatalRPCError(class, _) => {
            class.ends_with(".StandbyException")
        }
        _ => false,
    }
}

/// Makes a client when a NameNode answers.
pub(super) async fn connect(address: &Url) -> Result<Client> {
    let service = Service::of(address);
    let (begun, mut limit) = (Instant::now(), ANSWER);
    loop {
        let left = PATIENCE.saturating_sub(begun.elapsed());
        match service.order(limit.min(left)).await {
            Ok(ids) => {
                let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
                return service.client(&ids, &[]);
            }
            Err(trouble) if !is_away(&trouble) => return Err(trouble),
            Err(trouble) if begun.elapsed() + PAUSE >= PATIENCE => return Err(trouble),
            Err(_) => sleep(PAUSE).await,
        }
        limit *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namenodes_are_those_with_an_address() {
        let text = "<?xml version=\"1.0\"?>\n<configuration><property><name>dfs.ha.namenodes.ns</name>\
            <value>one, two,three</value></property><property><name>dfs.namenode.rpc-address.ns.one</name>\
            <value>a:1</value></property><property><value>b:2</value><final>true</final>\
            <name>dfs.namenode.rpc-address.ns.two</name></property><property><name>x</name></property></configuration>";
        let properties = properties_of(text).into_iter().collect();
        assert_eq!(ids("ns", &properties), ["one", "two"]);
        assert!(ids("other", &properties).is_empty());
        assert!(properties_of("<configuration>").is_empty());
    }
}
