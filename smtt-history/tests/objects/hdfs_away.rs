//! NameNodes and DataNodes that fail, are away, or say nothing.

use std::fs;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use xtask::event_log::ID;
use xtask::http::get;
use xtask::process::wait_for;

use crate::hdfs_lab::{Place, Proxy, hdfs, own};
use crate::lab::{self, LIMIT};

/// Arguments as a command takes them.
fn texts(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}

/// The only line that a command writes, which fails within a time limit.
fn line(place: &Place<'_>, store: &str, limit: Duration) -> Result<String> {
    let begun = Instant::now();
    let mut command = place.program();
    command.env_remove("SMTT_LOG");
    let done = command.args(["advise", "--store", store, ID]).output()?;
    let said = String::from_utf8(done.stderr)?;
    println!("{:?}: {}", begun.elapsed(), said.trim());
    ensure!(done.status.code() == Some(2), "{:?}: {said}", done.status);
    ensure!(begun.elapsed() < limit, "{:?}", begun.elapsed());
    ensure!(said.lines().count() == 1, "{said}");
    Ok(said)
}

#[test]
fn a_namenode_that_fails_is_one_line_and_its_applications_are_shown() -> Result<()> {
    let stopped = own("stopped")?;
    let place = Place::new(&stopped, "away");
    let folder = tempfile::tempdir()?;
    let log = lab::log(folder.path(), 100)?;
    place.done(&texts(&place.import(&log, &[])))?;
    // Another user may read nothing.
    let mut other = place.program();
    other
        .env("HADOOP_USER_NAME", "other")
        .env_remove("SMTT_LOG");
    let refused = other
        .args(["advise", "--store", &place.store(), ID])
        .output()?;
    let said = String::from_utf8(refused.stderr)?;
    ensure!(
        refused.status.code() == Some(2)
            && said.lines().count() == 1
            && said.contains("user=other"),
        "{said}"
    );
    stopped.ask(&["safemode", "on"])?;
    let refused = place.run(&texts(&place.import(&log, &["--replace"])))?;
    let said = String::from_utf8(refused.stderr)?;
    ensure!(
        !refused.status.success() && said.contains("safe mode"),
        "{said}"
    );
    stopped.ask(&["safemode", "off"])?;

    let served = place.serve(&[])?;
    let stages = format!("/api/v1/applications/{ID}/stages");
    let before = get(served.port, &stages)?;
    stopped.ask(&["stop"])?;
    // So is a name that neither a name service nor a host has.
    let limit = Duration::from_secs(60);
    // The system takes connections that nobody answers.
    let silent = TcpListener::bind("127.0.0.1:0")?;
    let port = silent.local_addr()?.port();
    let silent = format!("hdfs://127.0.0.1:{port}/history");
    // A NameNode that names a DataNode which says nothing.
    let other = Place::new(hdfs()?, "silent-datanode");
    other.done(&texts(&other.import(&log, &[])))?;
    let (proxy, through) = Proxy::start(&other)?;
    proxy.datanode(port);
    let (away, unknown, silent, datanode) = std::thread::scope(|scope| {
        let unknown = scope.spawn(|| line(&place, "hdfs://no-such-service/history", limit));
        let silent = scope.spawn(|| line(&place, &silent, limit));
        let datanode = scope.spawn(|| line(&through, &through.store(), limit));
        let away = line(&place, &place.store(), limit);
        let [unknown, silent, datanode] =
            [unknown, silent, datanode].map(|it| it.join().expect("asks"));
        (away, unknown, silent, datanode)
    });
    let (away, unknown, silent, datanode) = (away?, unknown?, silent?, datanode?);
    ensure!(away.contains("no answer of the NameNode"), "{away}");
    ensure!(unknown.contains("HADOOP_CONF_DIR"), "{unknown}");
    ensure!(silent.contains("no answer of the NameNode"), "{silent}");
    ensure!(datanode.contains("DataNode"), "{datanode}");
    // The server has its copy.
    let begun = Instant::now();
    ensure!(get(served.port, &stages)? == before);
    ensure!(
        begun.elapsed() < Duration::from_secs(10),
        "{:?}",
        begun.elapsed()
    );
    stopped.ask(&["start"])?;
    let fresh = place.serve(&[])?;
    wait_for("the application is there again", LIMIT, || {
        Ok(get(fresh.port, &stages).ok().filter(|it| *it == before))
    })?;
    Ok(())
}

#[test]
fn a_name_service_has_its_addresses_in_the_configuration() -> Result<()> {
    let place = Place::new(hdfs()?, "service");
    let folder = tempfile::tempdir()?;
    let log = lab::log(folder.path(), 50)?;
    place.done(&texts(&place.import(&log, &[])))?;
    let property = |name: &str, value: &str| {
        format!("<property><name>{name}</name><value>{value}</value></property>")
    };
    // The first NameNode is away: it refuses connections, or the system takes them and nobody answers.
    let silent = TcpListener::bind("127.0.0.1:0")?;
    for first in [9, silent.local_addr()?.port()] {
        let text = [
            property("dfs.nameservices", "ns"),
            property("dfs.ha.namenodes.ns", "one,two"),
            property(
                "dfs.namenode.rpc-address.ns.one",
                &format!("127.0.0.1:{first}"),
            ),
            property(
                "dfs.namenode.rpc-address.ns.two",
                &format!("127.0.0.1:{}", place.port),
            ),
        ];
        let text = format!("<configuration>{}</configuration>", text.concat());
        fs::write(folder.path().join("hdfs-site.xml"), text)?;
        let of = |store: &str| -> Result<String> {
            let mut command = place.program();
            command.env("HADOOP_CONF_DIR", folder.path());
            let done = command
                .args(["advise", "--json", "--store", store, ID])
                .output()?;
            let said = String::from_utf8_lossy(&done.stderr).into_owned();
            ensure!(done.status.success(), "{first}: {said}");
            Ok(String::from_utf8(done.stdout)?)
        };
        let begun = Instant::now();
        ensure!(of("hdfs://ns/service/history")? == of(&place.store())?);
        let took = begun.elapsed();
        ensure!(took < Duration::from_secs(60), "{first}: {took:?}");
    }
    Ok(())
}
