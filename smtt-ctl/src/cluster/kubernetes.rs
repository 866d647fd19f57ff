//! Workers as a service of Kubernetes knows them: the addresses of its EndpointSlices, read through the API with the
//! token and the authority of the pod's service account.
//! <https://kubernetes.io/docs/reference/kubernetes-api/discovery/endpoint-slice-v1/>

use std::env;
use std::path::Path;

use hyper::header::HeaderValue;
use serde::Deserialize;

use super::answer::read_harmless;
use super::bounds::Larger;
use super::credentials;
use super::spec::Worker;
use super::transport::{Access, Question};
use crate::args::ClusterArgs;

/// Where Kubernetes puts the files of a pod's service account.
/// <https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/>
pub const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Name of the port where a slice has several.
const PORT_NAME: &str = "metrics";
/// Slices in an answer, and answers of a list: 100 endpoints each by default.
const SLICES: usize = 100;
const PARTS: usize = 200;
/// Bytes of an answer.
const ANSWER_MAX: usize = 8 << 20;
/// Bytes of a token.
const TOKEN_MAX: usize = 16 << 10;

/// A part of the list of slices.
#[derive(Default, Deserialize)]
struct Slices {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    items: Vec<Slice>,
}

#[derive(Default, Deserialize)]
struct Metadata {
    /// Token of the next part; empty at the last one.
    #[serde(default, rename = "continue")]
    next: String,
}

#[derive(Deserialize)]
struct Slice {
    #[serde(rename = "addressType")]
    family: String,
    /// Absent or null where there is none.
    #[serde(default)]
    endpoints: Option<Vec<Endpoint>>,
    #[serde(default)]
    ports: Option<Vec<Port>>,
}

#[derive(Deserialize)]
struct Endpoint {
    #[serde(default)]
    addresses: Vec<String>,
    #[serde(default)]
    conditions: Conditions,
    #[serde(default, rename = "nodeName")]
    node: Option<String>,
}

#[derive(Default, Deserialize)]
struct Conditions {
    #[serde(default)]
    terminating: Option<bool>,
}

#[derive(Deserialize)]
struct Port {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    port: Option<u16>,
}

/// What `kubernetes:NAMESPACE/SERVICE[:PORT]` names.
struct Service<'a> {
    namespace: &'a str,
    name: &'a str,
    /// Name or number of the port.
    port: Option<&'a str>,
}

impl<'a> Service<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let (namespace, service) = text.split_once('/')?;
        let (name, port) = match service.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (service, None),
        };
        // Such names need no escape in a path or a query.
        let is_name = |name: &str| {
            let fits = (1..=63).contains(&name.len());
            fits && name
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        };
        let all = [Some(namespace), Some(name), port];
        all.into_iter().flatten().all(is_name).then_some(Self {
            namespace,
            name,
            port,
        })
    }

    fn path(&self, next: &str) -> String {
        let mut path = format!(
            "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3D{}&limit={SLICES}",
            self.namespace, self.name
        );
        if !next.is_empty() {
            path.push_str("&continue=");
            for byte in next.bytes() {
                match byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
                    true => path.push(byte.into()),
                    false => path.push_str(&format!("%{byte:02X}")),
                }
            }
        }
        path
    }

    /// Port of a slice's endpoints.
    fn port_of(&self, slice: &Slice) -> Result<u16, String> {
        if let Some(number) = self.port.and_then(|port| port.parse().ok()) {
            return Ok(number);
        }
        let ports = slice.ports.iter().flatten();
        let known: Vec<(&str, u16)> = ports
            .filter_map(|port| Some((port.name.as_deref().unwrap_or_default(), port.port?)))
            .collect();
        let wanted = self.port.unwrap_or(PORT_NAME);
        match (known.as_slice(), self.port) {
            ([(_, port)], None) => Ok(*port),
            (all, _) => {
                let found = all.iter().find(|(name, _)| *name == wanted);
                found.map(|(_, port)| *port).ok_or_else(|| {
                    format!("the service has no port {wanted}: write kubernetes:NAMESPACE/SERVICE:PORT with its name or number")
                })
            }
        }
    }
}

/// The workers behind a service. Endpoints that are not ready are workers, too: a list without them would hide that they
/// do not answer.
///
/// # Errors
/// When the API cannot be asked, or names no worker; in words.
pub async fn workers(service: &str, args: &ClusterArgs) -> Result<Vec<Worker>, String> {
    let parsed = Service::parse(service).ok_or("write kubernetes:NAMESPACE/SERVICE[:PORT]")?;
    let (api, access) = api(&args.kubernetes_account)?;
    let mut slices = Vec::new();
    let mut next = String::new();
    for _ in 0..PARTS {
        let path = parsed.path(&next);
        let asked = tokio::time::timeout(args.deadline, part(&access, &api, &path)).await;
        let late = || format!("the API gives no answer within {:?}", args.deadline);
        let part = asked.map_err(|_| late())??;
        slices.extend(part.items);
        next = part.metadata.next;
        if next.is_empty() {
            return found(&parsed, &slices, args.is_tls());
        }
    }
    Err("the API's list of endpoints has no end".to_owned())
}

/// One part of the list.
async fn part(access: &Access, api: &Worker, path_and_query: &str) -> Result<Slices, String> {
    let mut bytes = Vec::new();
    let mut take = |more: &[u8]| {
        bytes.extend_from_slice(more);
        match bytes.len() {
            0..=ANSWER_MAX => Ok(()),
            _ => Err(Larger::ThanAny),
        }
    };
    let question = Question {
        path_and_query,
        id: None,
    };
    let answer = access.get(api, question, &mut take).await;
    answer.map_err(|trouble| match trouble.to_string() {
        said if said.contains("(401)") => {
            "the API refuses the token of the service account (401)".to_owned()
        }
        said => format!("the API: {said}"),
    })?;
    read_harmless(&bytes, 8 * ANSWER_MAX as u64).map_err(|error| format!("the API: {error}"))
}

/// The API as a worker, and what it is shown.
fn api(account: &Path) -> Result<(Worker, Access), String> {
    let of = |name: &str| {
        env::var(name).map_err(|_| {
            format!("{name} is not set: run smtt-ctl in a pod, or write a file or dns:NAME:PORT")
        })
    };
    let host = of("KUBERNETES_SERVICE_HOST")?;
    let port = of("KUBERNETES_SERVICE_PORT_HTTPS").or_else(|_| of("KUBERNETES_SERVICE_PORT"))?;
    let port = port.parse().map_err(|_| format!("{port:?} is no port"))?;
    let path = account.join("token");
    let wrong =
        |error: &dyn std::fmt::Display| format!("{} cannot be used: {error}", path.display());
    // The kubelet writes the file and decides who in the pod may read it.
    let token = std::fs::read_to_string(&path).map_err(|error| wrong(&error))?;
    let token = token.trim();
    if token.is_empty() || token.len() > TOKEN_MAX {
        return Err(wrong(&"it has no token"));
    }
    let mut value =
        HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| wrong(&"it has no token"))?;
    value.set_sensitive(true);
    let tls = credentials::trusting(&account.join("ca.crt")).map_err(|error| error.to_string())?;
    let api = Worker {
        certified: Some(host.clone()),
        host,
        port,
        ..Worker::default()
    };
    Ok((api, Access::to_api(value, tls)))
}

/// The endpoints as workers, each once.
fn found(service: &Service<'_>, slices: &[Slice], tls: bool) -> Result<Vec<Worker>, String> {
    // A service of two families has each endpoint in a slice of both.
    let has_v4 = slices.iter().any(|slice| slice.family == "IPv4");
    let mut workers = Vec::new();
    for slice in slices
        .iter()
        .filter(|slice| !has_v4 || slice.family != "IPv6")
    {
        let endpoints = slice.endpoints.iter().flatten();
        let mut living = endpoints
            .filter(|endpoint| endpoint.conditions.terminating != Some(true))
            .peekable();
        if living.peek().is_none() {
            continue;
        }
        let port = service.port_of(slice)?;
        for endpoint in living {
            // Further addresses are of the same endpoint.
            let Some(host) = endpoint.addresses.first() else {
                continue;
            };
            workers.push(Worker {
                name: endpoint.node.clone().unwrap_or_default(),
                certified: tls.then(|| host.clone()),
                host: host.clone(),
                port,
                ..Worker::default()
            });
        }
    }
    match workers.is_empty() {
        true => Err("the service has no endpoints".to_owned()),
        false => Ok(workers),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn slice(family: &str, addresses: &[&str], ports: &Value) -> Slice {
        let endpoints: Vec<Value> = addresses
            .iter()
            .map(|address| json!({"addresses": [address], "conditions": {}, "nodeName": null}))
            .collect();
        let slice = json!({"addressType": family, "endpoints": endpoints, "ports": ports});
        serde_json::from_value(slice).expect("a slice")
    }

    #[test]
    fn a_service_of_two_families_has_each_worker_once() {
        let service = Service::parse("monitoring/smtt").expect("a service");
        let ports = json!([{"name": "any", "port": 10871, "protocol": "TCP"}]);
        let slices = [
            slice("IPv6", &["fd00::1", "fd00::2"], &ports),
            slice("IPv4", &["10.0.0.1", "10.0.0.2"], &ports),
            slice("IPv4", &[], &Value::Null),
        ];
        let workers = found(&service, &slices, false).expect("workers");
        let hosts: Vec<&str> = workers.iter().map(|worker| worker.host.as_str()).collect();
        assert_eq!(hosts, ["10.0.0.1", "10.0.0.2"]);
        assert_eq!(
            found(&service, &slices[..1], true).expect("workers").len(),
            2
        );
    }

    #[test]
    fn one_of_several_ports_must_be_named() {
        let ports = json!([{"name": "web", "port": 80}, {"name": "metrics", "port": 10871}]);
        let slices = [slice("IPv4", &["10.0.0.1"], &ports)];
        let port = |text: &str| {
            let service = Service::parse(text).expect("a service");
            found(&service, &slices, false).map(|workers| workers[0].port)
        };
        assert_eq!(port("a/b"), Ok(10871));
        assert_eq!(port("a/b:web"), Ok(80));
        assert_eq!(port("a/b:9000"), Ok(9000));
        assert!(port("a/b:other").is_err_and(|error| error.contains("no port other")));
    }

    #[test]
    fn names_that_are_none_are_refused() {
        for text in [
            "", "a", "a/", "/b", "a/b:", "A/b", "a/b/c", "a/b?x", "a/b:c d",
        ] {
            assert!(Service::parse(text).is_none(), "{text:?}");
        }
    }
}
