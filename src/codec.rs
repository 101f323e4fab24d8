//! Little-endian writing and checked reading of addresses, descriptors and control frames. A reader
//! never trusts a length.

use std::fmt;

#[derive(Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub fn new() -> Writer {
        Writer::default()
    }
    pub fn u8(&mut self, v: u8) -> &mut Self {
        self.bytes.push(v);
        self
    }
    pub fn u16(&mut self, v: u16) -> &mut Self {
        self.raw(&v.to_le_bytes())
    }
    pub fn u32(&mut self, v: u32) -> &mut Self {
        self.raw(&v.to_le_bytes())
    }
    pub fn u64(&mut self, v: u64) -> &mut Self {
        self.raw(&v.to_le_bytes())
    }
    pub fn u128(&mut self, v: u128) -> &mut Self {
        self.raw(&v.to_le_bytes())
    }
    pub fn raw(&mut self, v: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(v);
        self
    }
    /// Writes a 16-bit length and the bytes; longer input is truncated.
    pub fn short(&mut self, v: &[u8]) -> &mut Self {
        let v = &v[..v.len().min(u16::MAX as usize)];
        self.u16(v.len() as u16).raw(v)
    }
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
    /// Ends a blob with a checksum over all of it.
    pub fn sealed(mut self) -> Vec<u8> {
        let sum = crc32fast::hash(&self.bytes);
        self.u32(sum);
        self.bytes
    }
}

pub struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes }
    }

    /// A reader of a blob made by `Writer::sealed`; `None` if the blob is corrupt.
    pub fn unseal(blob: &'a [u8]) -> Option<Reader<'a>> {
        let (bytes, sum) = blob.split_last_chunk::<4>()?;
        (crc32fast::hash(bytes) == u32::from_le_bytes(*sum)).then_some(Reader { bytes })
    }

    fn chunk<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (chunk, rest) = self.bytes.split_first_chunk::<N>()?;
        self.bytes = rest;
        Some(*chunk)
    }
    pub fn u8(&mut self) -> Option<u8> {
        self.chunk::<1>().map(|c| c[0])
    }
    pub fn u16(&mut self) -> Option<u16> {
        self.chunk().map(u16::from_le_bytes)
    }
    pub fn u32(&mut self) -> Option<u32> {
        self.chunk().map(u32::from_le_bytes)
    }
    pub fn u64(&mut self) -> Option<u64> {
        self.chunk().map(u64::from_le_bytes)
    }
    pub fn u128(&mut self) -> Option<u128> {
        self.chunk().map(u128::from_le_bytes)
    }
    pub fn raw(&mut self, len: usize) -> Option<&'a [u8]> {
        let (raw, rest) = self.bytes.split_at_checked(len)?;
        self.bytes = rest;
        Some(raw)
    }
    pub fn short(&mut self) -> Option<&'a [u8]> {
        let len = self.u16()? as usize;
        self.raw(len)
    }
    pub fn text(&mut self) -> Option<String> {
        self.short().and_then(|raw| String::from_utf8(raw.to_vec()).ok())
    }
    pub fn rest(self) -> &'a [u8] {
        self.bytes
    }
    pub fn remaining(&self) -> usize {
        self.bytes.len()
    }
}

/// Text from peers or files, safe for log lines, errors and terminals: one line of at most `TEXT`
/// bytes, with unprintable characters escaped.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Text(String);

const TEXT: usize = 200;
const CUT: &str = "...";

impl Text {
    pub fn escaped(bytes: &[u8]) -> Text {
        let mut text = String::new();
        // Longer text is cut off.
        for chunk in bytes[..bytes.len().min(TEXT + 1)].utf8_chunks() {
            for c in chunk.valid().chars() {
                match c {
                    ' '..='~' if c != '\\' => text.push(c),
                    c => text.extend(c.escape_default()),
                }
            }
            chunk.invalid().iter().for_each(|byte| text.extend(byte.escape_ascii().map(char::from)));
        }
        if text.len() > TEXT {
            text.truncate(TEXT - CUT.len());
            text.push_str(CUT);
        }
        Text(text)
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_text_is_one_short_line() {
        let shown = |bytes: &[u8]| Text::escaped(bytes).to_string();
        assert_eq!(shown(b"no fabric in common: {tcp}"), "no fabric in common: {tcp}");
        assert_eq!(shown(b"a\nb\r\t\x1b[31m\0"), r"a\nb\r\t\u{1b}[31m\u{0}");
        assert_eq!(shown("\u{202e}\u{2028}\u{9b}\\".as_bytes()), r"\u{202e}\u{2028}\u{9b}\\");
        assert_eq!(shown(b"a\xff\xfeb"), r"a\xff\xfeb");
        assert_eq!(shown(&[b'A'; 200]), "A".repeat(200));
        for long in [&[b'A'; 201][..], &[7; 70_000], &[0xff; 70_000]] {
            let shown = shown(long);
            assert!(shown.len() == TEXT && shown.ends_with(CUT) && shown.is_ascii(), "{shown}");
        }
    }

    #[test]
    fn encoded_values_round_trip_and_corruption_is_detected() {
        let mut w = Writer::new();
        w.u8(1).u16(2).u32(3).u64(4).short(b"five");
        let blob = w.sealed();
        let mut r = Reader::unseal(&blob).expect("undamaged");
        assert_eq!((r.u8(), r.u16(), r.u32(), r.u64()), (Some(1), Some(2), Some(3), Some(4)));
        assert_eq!(r.text().as_deref(), Some("five"));
        assert_eq!((r.remaining(), r.u8()), (0, None));
        for at in 0..blob.len() {
            let mut damaged = blob.clone();
            damaged[at] ^= 0x10;
            assert!(Reader::unseal(&damaged).is_none(), "byte {at}");
            assert!(Reader::unseal(&blob[..at]).is_none(), "cut at {at}");
        }
    }
}
