//! Stores in a bucket, against moto, a server of S3's protocol that is not ours: answers equal those of a local store, live
//! parts, compactions, importers at once, kills at random moments, event logs, stores that fail, and long lists. The same in
//! HDFS, against Hadoop's own NameNode and DataNode.

mod answers;
mod faults;
mod hdfs;
mod hdfs_lab;
mod lab;
mod logs;
mod parts;
mod writers;
