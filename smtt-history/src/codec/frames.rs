//! Frames of zstd. Spark ends one whenever it flushes a log, so a log that grows can be read on from the last one.

use std::io::{self, BufRead, Read};

use zstd::stream::raw::{DParameter, Decoder, Operation as _};

use super::{Place, Unpack};

/// Largest window of a frame: 128 MiB, the limit of zstd's own program.
const WINDOW_LOG: u32 = 27;

/// Frames one after the other.
pub(super) struct Frames<R> {
    from: R,
    decoder: Decoder<'static>,
    /// Offset in the file of the next byte.
    at: u64,
    /// Whether a frame has begun and not ended: where it begins, and its bytes so far.
    within: Option<Place>,
    last: Place,
}

impl<R: BufRead> Frames<R> {
    /// # Errors
    /// When there is no memory for a decoder.
    pub(super) fn new(from: R, at: u64) -> io::Result<Self> {
        let mut decoder = Decoder::new()?;
        decoder.set_parameter(DParameter::WindowLogMax(WINDOW_LOG))?;
        Ok(Self {
            from,
            decoder,
            at,
            within: None,
            last: Place::default(),
        })
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        loop {
            let input = self.from.fill_buf()?;
            let is_end = input.is_empty();
            let mut place = match self.within {
                None if is_end => return Ok(0),
                None => Place {
                    block: self.at,
                    skip: 0,
                },
                Some(place) => place,
            };
            let done = self.decoder.run_on_buffers(input, out)?;
            self.from.consume(done.bytes_read);
            self.at += done.bytes_read as u64;
            self.last = place;
            place.skip += done.bytes_written as u64;
            self.within = (done.remaining > 0).then_some(place);
            if done.bytes_written > 0 {
                return Ok(done.bytes_written);
            }
            if is_end && self.within.is_some() {
                let kind = io::ErrorKind::UnexpectedEof;
                return Err(io::Error::new(kind, "incomplete frame"));
            }
        }
    }
}

impl<R: BufRead + Send> Unpack for Frames<R> {
    fn place(&self) -> Place {
        self.last
    }
}
