//! Stores in a bucket, against servers that are not ours (moto with S3's protocol; `clouds` has Google's and Azure's): answers
//! equal those of a local store, live parts, compactions, importers at once, kills at random moments, event logs, stores that
//! fail, and long lists. The same in HDFS, against Hadoop's own NameNode and DataNode.

mod answers;
mod clouds;
mod faults;
mod hdfs;
mod hdfs_away;
mod hdfs_lab;
mod lab;
mod logs;
mod parts;
mod writers;
