//! Attacks that go on for as long as the program lives: a slot file that changes all the time, and clients that read
//! slowly.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::mem::offset_of;
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use smtt_common::context::{HEADER_SIZE, Header, SLOT_SIZE};

/// Clients: more than the metrics port accepts.
const CLIENTS: usize = 64;
/// Pause between two bytes that a client reads.
const BYTE_EVERY: Duration = Duration::from_millis(200);

/// Bytes of the header that the daemon checks when it opens the file.
const FIXED: usize = offset_of!(Header, resync_request);

/// Fills all slots and the header behind its fixed part with other bytes, then cuts the file and extends it again.
pub fn spoil(file: &File, slots: u32) -> Result<()> {
    let length = HEADER_SIZE + slots as usize * SLOT_SIZE;
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = vec![0; length - HEADER_SIZE];
    loop {
        for word in bytes.as_chunks_mut::<8>().0 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            *word = random.to_le_bytes();
        }
        file.write_all_at(&bytes, HEADER_SIZE as u64)?;
        // The words of the header behind its fixed part: requests, counts and collections.
        file.write_all_at(&bytes[..HEADER_SIZE - FIXED], FIXED as u64)?;
        file.set_len(FIXED as u64)?;
        file.set_len(length as u64)?;
        std::thread::sleep(Duration::from_micros(random % 20_000));
    }
}

/// Asks for the metrics on many connections and reads an answer byte by byte. A connection that the server closes is
/// opened again. The port is in the file `port`.
pub fn read_slowly(folder: &Path) -> Result<()> {
    let text = std::fs::read_to_string(folder.join("port"))?;
    let port: u16 = text.trim().parse().context("port")?;
    let mut clients: Vec<Option<TcpStream>> = (0..CLIENTS).map(|_| None).collect();
    loop {
        for client in &mut clients {
            let alive = client.as_mut().is_some_and(|stream| {
                let mut byte = [0];
                match stream.read(&mut byte) {
                    Ok(count) => count > 0,
                    Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
                }
            });
            if !alive {
                // A refused connection is tried again in the next round.
                *client = ask(port).ok();
            }
        }
        std::thread::sleep(BYTE_EVERY);
    }
}

/// A connection with the smallest receive buffer that the kernel gives, and a request on it.
fn ask(port: u16) -> Result<TcpStream> {
    // SAFETY: the descriptor is new and owned by the stream.
    let stream = unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        ensure!(fd >= 0, "socket: {}", std::io::Error::last_os_error());
        TcpStream::from_raw_fd(fd)
    };
    let size: libc::c_int = 1;
    // Before the connection is made: the window is agreed on then.
    // SAFETY: the value outlives the call and has the length that is given.
    unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVBUF,
            (&raw const size).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        );
    }
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr {
            s_addr: u32::from(Ipv4Addr::LOCALHOST).to_be(),
        },
        sin_zero: [0; 8],
    };
    // SAFETY: the address outlives the call and has the length that is given.
    let connected = unsafe {
        libc::connect(
            stream.as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_in>() as libc::socklen_t,
        )
    };
    ensure!(
        connected == 0,
        "connect: {}",
        std::io::Error::last_os_error()
    );
    (&stream).write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}
