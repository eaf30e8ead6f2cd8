//! Which bytes of which file a row is.

use embedrock_core::error::{Error, ErrorKind, Result};
use std::path::PathBuf;

/// Rows that lie in one file at equal distances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The file.
    pub path: PathBuf,
    /// Place of the first byte of the first row.
    pub offset: u64,
    /// Bytes from the beginning of a row to that of the next one.
    pub stride: u64,
    /// Number of rows.
    pub rows: u64,
}

impl Part {
    /// The place behind the last row.
    pub(crate) fn end(&self, row_bytes: usize) -> Option<u64> {
        let last = self.stride.checked_mul(self.rows.checked_sub(1)?)?;
        self.offset.checked_add(last)?.checked_add(row_bytes as u64)
    }
}

/// The place of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Number of the part.
    pub(crate) part: usize,
    pub(crate) offset: u64,
}

/// Rows of several parts, one behind the other.
#[derive(Debug)]
pub(crate) struct Rows {
    row_bytes: usize,
    parts: Vec<Part>,
    /// Number of the first row of each part, and behind them that of all rows.
    first: Vec<u64>,
}

impl Rows {
    /// *Errors*: `Misuse`.
    pub(crate) fn new(row_bytes: usize, parts: Vec<Part>) -> Result<Self> {
        let misuse = |message: String| Err(Error::new(ErrorKind::Misuse, message));
        if row_bytes == 0 || row_bytes > super::LONGEST_BYTES / 2 {
            return misuse(format!(
                "rows of {row_bytes} bytes, expected 1 to {}",
                super::LONGEST_BYTES / 2
            ));
        }
        let mut first: Vec<u64> = vec![0];
        for part in &parts {
            let fits = part.stride >= row_bytes as u64 && part.end(row_bytes).is_some();
            if part.rows == 0 || !fits {
                return misuse(format!(
                    "{}: {} rows of {row_bytes} bytes at {}, {} bytes apart; expected one row or \
                     more, apart by their bytes at least",
                    part.path.display(),
                    part.rows,
                    part.offset,
                    part.stride
                ));
            }
            let rows = first[first.len() - 1].checked_add(part.rows);
            match rows.filter(|rows| *rows <= i64::MAX as u64) {
                Some(rows) => first.push(rows),
                None => return misuse("more rows than keys can number".to_owned()),
            }
        }
        match parts.is_empty() {
            true => misuse("no files to attach".to_owned()),
            false => Ok(Self { row_bytes, parts, first }),
        }
    }

    pub(crate) fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Number of all rows.
    pub(crate) fn len(&self) -> u64 {
        self.first[self.parts.len()]
    }

    /// The place of a row that there is.
    #[inline]
    pub(crate) fn place(&self, row: u64) -> Place {
        let part = match self.parts.len() {
            1 => 0,
            _ => self.first.partition_point(|first| *first <= row) - 1,
        };
        let Part { offset, stride, .. } = self.parts[part];
        Place { part, offset: offset + (row - self.first[part]) * stride }
    }
}

/// Rows of one file that one request brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) part: usize,
    /// Place and bytes, both aligned.
    pub(crate) offset: u64,
    pub(crate) bytes: usize,
    /// Which of the rows: first, and one behind the last.
    pub(crate) rows: (u32, u32),
}

/// Bytes between two rows that are read in vain, at most, to save a request.
const GAP: u64 = 4096;

/// Makes requests for rows whose numbers ascend, some of them several times, from the `next`th on.
/// One takes rows on while they are near and it stays within `longest` bytes.
pub(crate) fn next_request(
    rows: &Rows,
    wanted: &[(u64, u32)],
    next: usize,
    alignment: u64,
    longest: u64,
) -> Request {
    let Place { part, offset } = rows.place(wanted[next].0);
    let row_bytes = rows.row_bytes() as u64;
    let begin = offset - offset % alignment;
    let mut end = (offset + row_bytes).next_multiple_of(alignment);
    let mut to = next + 1;
    while let Some((row, _)) = wanted.get(to) {
        let place = rows.place(*row);
        let reach = (place.offset + row_bytes).next_multiple_of(alignment);
        if place.part != part || place.offset > end + GAP || reach - begin > longest {
            break;
        }
        end = end.max(reach);
        to += 1;
    }
    Request { part, offset: begin, bytes: (end - begin) as usize, rows: (next as u32, to as u32) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(offset: u64, stride: u64, rows: u64) -> Part {
        Part { path: "rows".into(), offset, stride, rows }
    }

    #[test]
    fn rows_of_parts_follow_one_another() {
        let rows = Rows::new(10, vec![part(8, 10, 3), part(0, 16, 1), part(100, 12, 2)]).unwrap();
        assert_eq!(rows.len(), 6);
        let places: Vec<(usize, u64)> =
            (0..6).map(|row| rows.place(row)).map(|place| (place.part, place.offset)).collect();
        assert_eq!(places, [(0, 8), (0, 18), (0, 28), (1, 0), (2, 100), (2, 112)]);
    }

    #[test]
    fn parts_without_rows_or_room_for_them_are_refused() {
        let error =
            |row_bytes, parts| Rows::new(row_bytes, parts).unwrap_err().message().to_owned();
        assert_eq!(error(4, vec![]), "no files to attach");
        assert!(error(0, vec![part(0, 4, 1)]).starts_with("rows of 0 bytes"));
        assert!(error(1 << 20, vec![part(0, 1 << 20, 1)]).starts_with("rows of 1048576 bytes"));
        for bad in [part(0, 4, 0), part(0, 3, 2), part(u64::MAX - 2, 4, 1), part(0, 1 << 62, 9)] {
            assert!(error(4, vec![bad]).starts_with("rows: "));
        }
        let many = part(0, 1 << 20, i64::MAX as u64 >> 20);
        assert!(Rows::new(4, vec![many.clone(); 1 << 20]).is_ok());
        assert!(error(4, vec![many; (1 << 20) + 2]).contains("more rows than"));
    }

    #[test]
    fn requests_are_aligned_take_neighbours_along_and_stay_short() {
        let rows = Rows::new(160, vec![part(1000, 160, 1000), part(0, 160, 1000)]).unwrap();
        let wanted: Vec<(u64, u32)> = [0, 0, 1, 500, 999, 1000].map(|row| (row, 7)).into();
        let mut next = 0;
        let mut found = Vec::new();
        while next < wanted.len() {
            let request = next_request(&rows, &wanted, next, 512, 65_536);
            next = request.rows.1 as usize;
            found.push((request.part, request.offset, request.bytes, request.rows));
        }
        // 1000 to 1320; 81,000 to 81,160; 160,840 to 161,000; the other file's first row.
        assert_eq!(
            found,
            [
                (0, 512, 1024, (0, 3)),
                (0, 80_896, 512, (3, 4)),
                (0, 160_768, 512, (4, 5)),
                (1, 0, 512, (5, 6)),
            ]
        );
        let all: Vec<(u64, u32)> = (0..1000).map(|row| (row, 0)).collect();
        let request = next_request(&rows, &all, 0, 512, 4096);
        assert_eq!((request.offset, request.bytes), (512, 4096));
        assert_eq!(request.rows, (0, 22), "rows up to byte 4,608");
    }
}
