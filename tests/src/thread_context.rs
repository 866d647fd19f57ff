//! A reader of what threads publish for OpenTelemetry's profilers, written from the proposals alone: the process context
//! (OTEP 4719) and the threads' contexts (OTEP 4947). It stops a thread while it reads it, as they demand.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use xtask::elf::Elf;
use xtask::witness;

/// Bytes of a process's payload, and of a thread's attributes, at most.
const PAYLOAD_MAX: usize = 1 << 20;
/// Bytes of a record up to its attributes.
const HEAD: usize = 28;
const VARIABLE: &str = "otel_thread_ctx_v1";
/// Type of the relocation that fills a TLS descriptor.
const R_X86_64_TLSDESC: u32 = 36;

/// What a process publishes about itself.
#[derive(Debug, Default)]
pub struct ProcessContext {
    /// Attributes of the resource, all of them texts.
    pub resource: BTreeMap<String, String>,
    /// Form of the threads' contexts.
    pub schema: String,
    /// Names of the attributes of threads, by their index.
    pub keys: Vec<String>,
    /// When it was published.
    pub published_ns: u64,
}

/// A process whose threads have contexts.
#[derive(Debug)]
pub struct Reader {
    pid: u32,
    variable: Variable,
    /// What the process said when the reader began.
    pub process: ProcessContext,
}

/// Where a thread's variable is.
#[derive(Debug)]
enum Variable {
    /// At this distance from the thread's pointer.
    Static(i64),
    /// In the block of a library: its number in the thread's vector, and the offset.
    Dynamic(u64, u64),
}

impl Reader {
    /// Finds the process's context and the variable; `None` where the process publishes nothing.
    ///
    /// # Errors
    /// When the process is gone, or what it publishes is not in the proposals' form.
    pub fn new(pid: u32) -> Result<Option<Self>> {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
        let Some(process) = process_context(&maps, pid)? else {
            return Ok(None);
        };
        let variable = variable(&maps, pid)?
            .context("a process context without a library that has the variable")?;
        Ok(Some(Self {
            pid,
            variable,
            process,
        }))
    }

    /// The attributes of a thread, by their names; `None` where its variable is null.
    ///
    /// # Errors
    /// When the thread is gone, or its record is not in the proposal's form.
    pub fn thread(&self, tid: u32) -> Result<Option<BTreeMap<String, String>>> {
        let stopped = Stopped::new(tid)?;
        let place = match self.variable {
            Variable::Static(offset) => stopped.thread_pointer.wrapping_add_signed(offset),
            Variable::Dynamic(module, offset) => {
                let vector = word(self.pid, stopped.thread_pointer + 8)?;
                let known = word(self.pid, vector - 16)?;
                let block = if module <= known {
                    word(self.pid, vector + module * 16)?
                } else {
                    0
                };
                if [0, u64::MAX].contains(&block) {
                    // The thread has never used the library's variables.
                    return Ok(None);
                }
                block + offset
            }
        };
        let record = word(self.pid, place)?;
        if record == 0 {
            return Ok(None);
        }
        ensure!(record.is_multiple_of(2), "a record at {record:#x}");
        let head = bytes(self.pid, record, HEAD)?;
        ensure!(head[24] == 1, "a record that is not valid: {head:?}");
        ensure!(
            head[..24].iter().all(|byte| *byte == 0) && head[25] == 0,
            "a trace where there is none: {head:?}"
        );
        let size = usize::from(u16::from_ne_bytes([head[26], head[27]]));
        ensure!(HEAD + size <= 640, "a record of {size} bytes");
        let data = bytes(self.pid, record + HEAD as u64, size)?;
        drop(stopped);
        let mut found = BTreeMap::new();
        let mut rest = data.as_slice();
        while let [key, length, tail @ ..] = rest {
            let (value, next) = tail
                .split_at_checked(usize::from(*length))
                .with_context(|| format!("an attribute is cut off: {data:?}"))?;
            let key = self.process.keys.get(usize::from(*key));
            found.insert(
                key.with_context(|| format!("no name for {key:?}"))?.clone(),
                String::from_utf8(value.to_vec())?,
            );
            rest = next;
        }
        ensure!(rest.is_empty(), "{} bytes are left over", rest.len());
        Ok(Some(found))
    }
}

/// A thread that does not run; dropping it lets it go on.
struct Stopped {
    tid: Pid,
    /// A signal that reached the thread meanwhile, which it gets when it goes on.
    signal: Option<Signal>,
    /// The thread's pointer, to which places of variables are relative.
    thread_pointer: u64,
}

impl Stopped {
    fn new(tid: u32) -> Result<Self> {
        let tid = Pid::from_raw(tid.try_into()?);
        ptrace::seize(tid, ptrace::Options::empty())
            .with_context(|| format!("thread {tid} cannot be traced"))?;
        let mut stopped = Self {
            tid,
            signal: None,
            thread_pointer: 0,
        };
        ptrace::interrupt(tid)?;
        match waitpid(tid, Some(WaitPidFlag::__WALL))? {
            WaitStatus::Stopped(_, signal) => stopped.signal = Some(signal),
            WaitStatus::PtraceEvent(..) => {}
            other => bail!("thread {tid} did not stop: {other:?}"),
        }
        stopped.thread_pointer = ptrace::getregs(tid)?.fs_base;
        Ok(stopped)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // A thread that has ended needs no detaching.
        let _ = ptrace::detach(self.tid, self.signal);
    }
}

/// Finds the mapping by its name and reads it as the reading protocol says.
fn process_context(maps: &str, pid: u32) -> Result<Option<ProcessContext>> {
    let names = [
        "[anon_shmem:OTEL_CTX]",
        "[anon:OTEL_CTX]",
        "/memfd:OTEL_CTX",
    ];
    let mut lines = maps.lines().filter(|line| {
        let name = line.split_ascii_whitespace().nth(5).unwrap_or_default();
        names.iter().any(|known| name.starts_with(known))
    });
    let Some(line) = lines.next() else {
        return Ok(None);
    };
    ensure!(lines.next().is_none(), "two process contexts: {maps}");
    let (start, _) = line.split_once('-').context("no address")?;
    let start = u64::from_str_radix(start, 16)?;
    let head = bytes(pid, start, 32)?;
    ensure!(&head[..8] == b"OTEL_CTX", "{head:?}");
    ensure!(head[8..12] == 2_u32.to_ne_bytes(), "version: {head:?}");
    let published_ns = u64::from_ne_bytes(head[16..24].try_into()?);
    ensure!(published_ns != 0, "it changes");
    let size = u32::from_ne_bytes(head[12..16].try_into()?) as usize;
    ensure!(size <= PAYLOAD_MAX, "{size} bytes");
    let payload = bytes(pid, u64::from_ne_bytes(head[24..32].try_into()?), size)?;
    let after = word(pid, start + 16)?;
    ensure!(after == published_ns, "it changed meanwhile");
    let mut context = ProcessContext {
        published_ns,
        ..ProcessContext::default()
    };
    for (field, value) in fields(&payload)? {
        match field {
            1 => {
                for (field, value) in fields(value)? {
                    ensure!(field == 1, "field {field} of the resource");
                    let (key, value) = key_value(value)?;
                    context.resource.insert(key, text(value)?);
                }
            }
            2 => match key_value(value)? {
                (key, value) if key == "threadlocal.schema_version" => {
                    context.schema = text(value)?
                }
                (key, value) if key == "threadlocal.attribute_key_map" => {
                    let [(5, array)] = fields(value)?[..] else {
                        bail!("no array: {value:?}");
                    };
                    for (_, value) in fields(array)? {
                        context.keys.push(text(value)?);
                    }
                }
                (key, _) => bail!("an attribute {key}"),
            },
            other => bail!("field {other} of the process context"),
        }
    }
    Ok(Some(context))
}

/// The library that exports the variable, and where the loader has put the variable.
fn variable(maps: &str, pid: u32) -> Result<Option<Variable>> {
    for line in maps.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(range), Some(offset), Some(path)) = (words.next(), words.nth(1), words.nth(2))
        else {
            continue;
        };
        if offset != "00000000" || !Path::new(path).is_file() {
            continue;
        }
        let file = std::fs::read(path)?;
        let Ok(elf) = Elf::parse(&file) else {
            continue;
        };
        if elf.thread_local(VARIABLE).is_none() {
            continue;
        }
        let start = range.split('-').next().context("no address")?;
        let base = u64::from_str_radix(start, 16)?;
        let descriptor = elf
            .relocation(VARIABLE, R_X86_64_TLSDESC)
            .context("no TLS descriptor")?;
        // A function of the loader and its argument: an offset, or what the function finds the block with.
        let argument = word(pid, base + descriptor + 8)?;
        if (argument as i64) < 0 {
            return Ok(Some(Variable::Static(argument as i64)));
        }
        return Ok(Some(Variable::Dynamic(
            word(pid, argument)?,
            word(pid, argument + 8)?,
        )));
    }
    Ok(None)
}

fn bytes(pid: u32, at: u64, length: usize) -> Result<Vec<u8>> {
    witness::memory(pid, at, length).with_context(|| format!("{length} bytes at {at:#x}"))
}

fn word(pid: u32, at: u64) -> Result<u64> {
    Ok(u64::from_ne_bytes(
        bytes(pid, at, 8)?.try_into().expect("eight"),
    ))
}

/// Fields of a protobuf message, all of which have a length.
fn fields(mut rest: &[u8]) -> Result<Vec<(u64, &[u8])>> {
    let mut found = Vec::new();
    while !rest.is_empty() {
        let tag = varint(&mut rest)?;
        ensure!(tag & 7 == 2, "a field of the form {}", tag & 7);
        let length = usize::try_from(varint(&mut rest)?)?;
        let (value, next) = rest.split_at_checked(length).context("it is cut off")?;
        found.push((tag >> 3, value));
        rest = next;
    }
    Ok(found)
}

fn varint(rest: &mut &[u8]) -> Result<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, next) = rest.split_first().context("a number is cut off")?;
        *rest = next;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Ok(value);
        }
    }
    bail!("a number of more than 64 bits")
}

/// `KeyValue`: the key, and the value's message.
fn key_value(message: &[u8]) -> Result<(String, &[u8])> {
    let [(1, key), (2, value)] = fields(message)?[..] else {
        bail!("no key with a value: {message:?}");
    };
    Ok((String::from_utf8(key.to_vec())?, value))
}

/// `AnyValue` that is a text.
fn text(value: &[u8]) -> Result<String> {
    let [(1, text)] = fields(value)?[..] else {
        bail!("no text: {value:?}");
    };
    Ok(String::from_utf8(text.to_vec())?)
}
