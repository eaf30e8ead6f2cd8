//! The expected content of every row, as a function of its key and its number of writes.
//!
//! The base values are those of `values_of` in `lab/embedrock_lab/measure/rows.py`, bit for bit:
//! multiples of 2^-23 in [0, 1). A step adds 2^-23, so sums below 2 are exact and a row that is
//! one write behind, or another key's, differs.

use crate::settings::{Change, Settings};

/// 2^-23: one step, and the unit of all values.
pub(crate) const STEP: f32 = 1.0 / 8_388_608.0;
/// Every element of the gradient in mode `update`; its square, 2^-8, sums exactly.
const GRADIENT: f32 = 0.0625;
const LEARNING_RATE: f32 = 0.05;
const EPSILON: f32 = 1e-10;
/// Allowed distance of values from the sum of steps in double precision after row-wise Adagrad.
const TOLERANCE: f32 = 1e-4;

/// The base value of `key` at each place, in units of 2^-23.
fn words_of(key: u64) -> impl FnMut(u32) -> u32 {
    let mut mixed = key.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed = mixed.wrapping_add(0x632B_E59B_D9B4_E019);
    mixed ^= mixed >> 29;
    mixed = mixed.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let low = (mixed >> 32) as u32;
    move |place| low.wrapping_add(place.wrapping_mul(0x9E37_79B1)) >> 9
}

/// Writes the row of `key` after `steps` steps into `row`.
pub(crate) fn fill_row(key: u64, steps: u32, row: &mut [f32]) {
    let mut word = words_of(key);
    for (place, value) in row.iter_mut().enumerate() {
        *value = (word(place as u32) + steps) as f32 * STEP;
    }
}

/// Writes the stored rows of the ids from `first` on: base values, state 0.
pub(crate) fn fill_base(settings: &Settings, first: u64, rows: &mut [f32]) {
    for (place, row) in rows.chunks_exact_mut(settings.row_words()).enumerate() {
        let (values, state) = row.split_at_mut(settings.dim);
        fill_row(first + place as u64, 0, values);
        state.fill(0.0);
    }
}

/// Adds one step to every value.
pub(crate) fn step(rows: &mut [f32]) {
    for value in rows {
        *value += STEP;
    }
}

/// One step of row-wise Adagrad on stored rows of `dim` values and one word of state.
pub(crate) fn adagrad(dim: usize, rows: &mut [f32]) {
    for row in rows.chunks_exact_mut(dim + 1) {
        row[dim] += GRADIENT * GRADIENT;
        let size = -LEARNING_RATE / (row[dim].sqrt() + EPSILON) * GRADIENT;
        for value in &mut row[..dim] {
            *value += size;
        }
    }
}

/// Number of writes of each row, which gives its expected content.
pub(crate) struct Expected {
    dim: usize,
    words: usize,
    adagrad: bool,
    writes: Vec<u32>,
    /// Distance of the values after n steps of Adagrad; as long as the most written row needs.
    moved: Vec<f64>,
    row: Vec<f32>,
}

impl Expected {
    pub(crate) fn new(settings: &Settings, change: Change) -> Self {
        Self {
            dim: settings.dim,
            words: settings.row_words(),
            adagrad: change == Change::Adagrad,
            writes: vec![0; settings.rows as usize],
            moved: vec![0.0],
            row: vec![0.0; settings.dim],
        }
    }

    /// The counters as scratch memory, for whoever needs one word per row before the first batch;
    /// `clear` ends that.
    pub(crate) fn scratch(&mut self) -> &mut [u32] {
        &mut self.writes
    }

    /// Sets all counters to 0 and thereby makes their memory resident.
    pub(crate) fn clear(&mut self) {
        self.writes.fill(1);
        std::hint::black_box(&mut self.writes).fill(0);
    }

    /// Number of read rows that differ from the expected ones.
    pub(crate) fn mismatches(&mut self, keys: &[u64], rows: &[f32]) -> usize {
        let pairs = keys.iter().zip(rows.chunks_exact(self.words));
        pairs.filter(|&(&key, row)| !self.matches(key, row)).count()
    }

    fn matches(&mut self, key: u64, row: &[f32]) -> bool {
        let writes = self.writes[key as usize];
        if !self.adagrad {
            fill_row(key, writes, &mut self.row);
            return self.row == row[..self.dim];
        }
        fill_row(key, 0, &mut self.row);
        let moved = self.moved_after(writes);
        let near = |(&found, &base): (&f32, &f32)| {
            (f64::from(found) - (f64::from(base) - moved)).abs() <= f64::from(TOLERANCE)
        };
        row[self.dim] == writes as f32 * (GRADIENT * GRADIENT)
            && row.iter().zip(&self.row).all(near)
    }

    fn moved_after(&mut self, writes: u32) -> f64 {
        let square = f64::from(GRADIENT * GRADIENT);
        while self.moved.len() <= writes as usize {
            let state = self.moved.len() as f64 * square;
            let size = f64::from(LEARNING_RATE) / (state.sqrt() + f64::from(EPSILON));
            let before = self.moved.last().copied().unwrap_or(0.0);
            self.moved.push(before + size * f64::from(GRADIENT));
        }
        self.moved[writes as usize]
    }

    /// Fills `rows` with what blind writes of `keys` put there: one step more than was written.
    pub(crate) fn fill_next(&self, keys: &[u64], rows: &mut [f32]) {
        for (&key, row) in keys.iter().zip(rows.chunks_exact_mut(self.words)) {
            fill_row(key, self.writes[key as usize] + 1, &mut row[..self.dim]);
        }
    }

    /// Notes that each of `keys` was written once more.
    pub(crate) fn written(&mut self, keys: &[u64]) {
        for &key in keys {
            self.writes[key as usize] += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    fn settings(mode: &str) -> Settings {
        Settings::parse(&format!(
            r#"{{"engine": "mmap", "mode": "{mode}", "dim": 33, "rows": 8, "place": "x",
                "memory_bytes": 1}}"#
        ))
        .unwrap()
    }

    #[test]
    fn base_values_are_those_of_the_python_benches() {
        // Printed by `values_of(np.array([...]), 33)[:, [0, 1, 2, 31, 32]] * 2**23`.
        let golden: [(u64, [u32; 5]); 5] = [
            (0, [4451527, 1247363, 6431808, 5785765, 2581602]),
            (1, [2280648, 7465093, 4260930, 3614887, 410723]),
            (7, [3154209, 8338654, 5134491, 4488447, 1284284]),
            (3_999_999, [3158799, 8343244, 5139081, 4493037, 1288874]),
            ((1 << 40) + 5, [583090, 5767535, 2563372, 1917328, 7101773]),
        ];
        for (key, words) in golden {
            let mut row = [0.0; 33];
            fill_row(key, 0, &mut row);
            let found = [0, 1, 2, 31, 32].map(|place| row[place]);
            assert_eq!(found, words.map(|word| word as f32 * STEP), "key {key}");
        }
    }

    #[test]
    fn steps_add_up_exactly() {
        let (mut row, mut expected) = ([0.0; 32], [0.0; 32]);
        fill_row(2, 0, &mut row);
        for _ in 0..1000 {
            step(&mut row);
        }
        fill_row(2, 1000, &mut expected);
        assert_eq!(row, expected);
    }

    #[test]
    fn a_row_one_write_behind_is_a_mismatch() {
        let mut expected = Expected::new(&settings("train"), Change::Step);
        let mut rows = [0.0; 66];
        expected.clear();
        expected.written(&[5]);
        fill_row(4, 0, &mut rows[..33]);
        fill_row(5, 0, &mut rows[33..]);
        assert_eq!(expected.mismatches(&[4, 5], &rows), 1);
        expected.fill_next(&[4], &mut rows[..33]);
        assert_eq!(expected.mismatches(&[4, 5], &rows), 2);
    }

    #[test]
    fn updates_are_followed_within_the_tolerance() {
        let settings = settings("update");
        let mut expected = Expected::new(&settings, Change::Adagrad);
        let mut rows = [0.0; 34];
        fill_base(&settings, 3, &mut rows);
        for _ in 0..2000 {
            assert_eq!(expected.mismatches(&[3], &rows), 0);
            adagrad(33, &mut rows);
            expected.written(&[3]);
        }
        assert_eq!(expected.mismatches(&[3], &rows), 0);
        rows[32] += 0.001;
        assert_eq!(expected.mismatches(&[3], &rows), 1);
    }
}
