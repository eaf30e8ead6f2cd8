//! The two text formats that scrapers of `/metrics` read: which of them one asks for, and the
//! older one from the newer.

use std::collections::HashSet;

pub(crate) const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
pub(crate) const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Whether a request, headers included, prefers OpenMetrics. A client that lists formats without
/// that one gets the plain format, which every client reads; one that lists none gets OpenMetrics.
pub(crate) fn is_openmetrics(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request).to_ascii_lowercase();
    let accepts = text.split("\r\n").skip(1).filter_map(|line| line.strip_prefix("accept:"));
    let mut accepts = accepts.peekable();
    if accepts.peek().is_none() {
        return true;
    }
    let (mut open, mut plain) = (0.0f64, 0.0f64);
    for range in accepts.flat_map(|accept| accept.split(',')) {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default();
        let quality = parts.find_map(|part| part.strip_prefix("q=")?.trim().parse().ok());
        let quality = quality.unwrap_or(1.0);
        match kind {
            "application/openmetrics-text" => open = open.max(quality),
            "text/plain" | "text/*" => plain = plain.max(quality),
            _ => {}
        }
    }
    open > 0.0 && open >= plain
}

/// The plain format 0.0.4 of a text of OpenMetrics: there the name of a counter has its `_total`
/// also where it is described, and neither units nor an end are told.
pub(crate) fn plain_of(openmetrics: &str) -> String {
    let kinds =
        openmetrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let counters: HashSet<&str> =
        kinds.filter(|(_, kind)| *kind == "counter").map(|(name, _)| name).collect();
    let mut text = String::with_capacity(openmetrics.len() + 16 * counters.len());
    for line in openmetrics.lines() {
        if line == "# EOF" || line.starts_with("# UNIT ") {
            continue;
        }
        let described = ["# HELP ", "# TYPE "].into_iter().find_map(|word| {
            let (name, rest) = line.strip_prefix(word)?.split_once(' ')?;
            counters.contains(name).then_some((word, name, rest))
        });
        match described {
            Some((word, name, rest)) => {
                text.push_str(word);
                text.push_str(name);
                text.push_str("_total ");
                text.push_str(rest);
            }
            None => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scraper_gets_the_format_that_it_asks_for() {
        for (accept, expected) in [
            ("Host: x", true),
            ("Accept: */*", false),
            ("Accept: text/plain", false),
            ("accept: text/plain;version=0.0.4;q=0.5, */*;q=0.1", false),
            ("Accept: application/openmetrics-text", true),
            ("Accept: application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.1", true),
            (
                "Accept: application/openmetrics-text;version=1.0.0;q=0.5,\
                 application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3",
                true,
            ),
            ("Accept: application/openmetrics-text;q=0.3,text/plain;q=0.7", false),
            ("Accept: application/openmetrics-text;q=0", false),
        ] {
            let request = format!("GET /metrics HTTP/1.1\r\n{accept}\r\n\r\n");
            assert_eq!(is_openmetrics(request.as_bytes()), expected, "{accept}");
        }
    }

    #[test]
    fn the_plain_format_describes_counters_by_their_whole_name() {
        let openmetrics = "# HELP a_rows Rows.\n# TYPE a_rows counter\na_rows_total 3\n\
            # HELP a_rows_now Rows now.\n# TYPE a_rows_now gauge\n# UNIT a_rows_now rows\n\
            a_rows_now 2\n# EOF\n";
        let plain = "# HELP a_rows_total Rows.\n# TYPE a_rows_total counter\na_rows_total 3\n\
            # HELP a_rows_now Rows now.\n# TYPE a_rows_now gauge\na_rows_now 2\n";
        assert_eq!(plain_of(openmetrics), plain);
    }
}
