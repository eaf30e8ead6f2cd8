//! Plans: which rows lie together, and what becomes of that in a store.

use crate::config::TableSpec;
use crate::error::{Result, bail};
use crate::storage::{PageLayout, Placement};
use crate::store::engine::{Class, Table};
use std::collections::BTreeMap;

/// Rows of tables that share pages, in an order, with replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlannedPages {
    /// Names of the tables.
    pub tables: Vec<String>,
    /// Rows of a page at home; the last page may have fewer.
    pub rows_per_page: usize,
    /// Of each row in order, its table, as a place in `tables`. *Shape*: (rows,).
    pub table: Vec<u16>,
    /// Of each row in order, its key. *Shape*: (rows,).
    pub key: Vec<u64>,
    /// Offset of each replica page in `replica_rows`, and the end of the last one. *Shape*:
    /// (replica pages + 1,), or none without replicas.
    pub replica_starts: Vec<u32>,
    /// Rows of the replica pages, as places in the order.
    pub replica_rows: Vec<u32>,
}

/// By the bytes of rows, the smallest page that holds as many of them as the plans of these say.
pub(super) fn pages_of_plans(
    plans: &[PlannedPages],
    named: &[Vec<String>],
    specs: &[TableSpec],
) -> Result<BTreeMap<usize, usize>> {
    let mut pages = BTreeMap::new();
    for (plan, named) in plans.iter().zip(named) {
        let Some(spec) = specs.iter().find(|spec| named.contains(&spec.name)) else { continue };
        let row_bytes = spec.validate()?.row_bytes();
        let holds = |page_bytes: &usize| {
            PageLayout::new(*page_bytes, row_bytes, 0, 0)
                .is_ok_and(|layout| layout.rows_per_page >= plan.rows_per_page)
        };
        // If no page does, the plan is refused by name later.
        if let Some(page_bytes) = (9..=16).map(|bits| 1 << bits).find(holds) {
            let most = pages.entry(row_bytes).or_insert(page_bytes);
            *most = page_bytes.max(*most);
        }
    }
    Ok(pages)
}

/// The plans with the tables that they are of; those that are not there, or twice, are refused. A
/// plan of a table without a name is of the only one that there is.
pub(super) fn named(names: &[&str], plans: &[PlannedPages]) -> Result<Vec<Vec<String>>> {
    let mut seen = Vec::new();
    let listed = || names.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ");
    let mut of_plan = |name: &String| {
        let name = match (name.as_str(), names) {
            ("", [only]) if !names.contains(&"") => *only,
            ("", _) if !names.contains(&"") => bail!(
                Misuse,
                "the plan does not say which table it is of, the store has {}; name it when the \
                 trace is made",
                listed()
            ),
            (name, _) => name,
        };
        if !names.contains(&name) {
            bail!(
                Misuse,
                "the plan has table '{name}', the store has {}; place again with a trace of its \
                 tables",
                listed()
            );
        }
        if seen.contains(&name.to_owned()) {
            bail!(Misuse, "the plan has table '{name}' twice, expected it once");
        }
        seen.push(name.to_owned());
        Ok(name.to_owned())
    };
    plans.iter().map(|plan| plan.tables.iter().map(&mut of_plan).collect()).collect()
}

/// The placement of a class, of all plans of its tables, whose names are `named`.
pub(super) fn placement(
    plans: &[PlannedPages],
    named: &[Vec<String>],
    class: &Class,
    tables: &[&Table],
) -> Result<Placement> {
    let record = &class.record;
    let holds = PageLayout::new(record.page_bytes, record.row_bytes, 0, 0)?.rows_per_page;
    let ids: BTreeMap<&str, u16> =
        tables.iter().map(|t| (t.record.spec.name.as_str(), t.id())).collect();
    let mut placement = Placement::default();
    for (plan, named) in plans.iter().zip(named) {
        let of_plan: Vec<Option<u16>> =
            named.iter().map(|name| ids.get(name.as_str()).copied()).collect();
        if of_plan.iter().all(Option::is_none) {
            continue;
        }
        if let Some(at) = of_plan.iter().position(Option::is_none) {
            let here = of_plan.iter().position(Option::is_some).unwrap_or(0);
            bail!(
                Misuse,
                "the plan lets tables '{}' and '{}' share pages, and their rows differ in \
                 size; place again with this store, or, for other types of values, with one that \
                 was frozen without a plan",
                named[here],
                named[at]
            );
        }
        if plan.rows_per_page > holds || plan.rows_per_page == 0 {
            bail!(
                Misuse,
                "the plan has {} rows a page, a page of {} bytes holds {holds} of table \
                 '{}'; place again with this store, or with rows_per_page={holds}",
                plan.rows_per_page,
                record.page_bytes,
                named[0]
            );
        }
        let first = placement.rows.len() as u32;
        if plan.table.len() != plan.key.len() {
            bail!(
                Misuse,
                "the plan has {} tables for {} keys, expected one for each",
                plan.table.len(),
                plan.key.len()
            );
        }
        for (table, key) in plan.table.iter().zip(&plan.key) {
            let Some(Some(id)) = of_plan.get(usize::from(*table)) else {
                bail!(
                    Misuse,
                    "the plan has a row of table {table}, expected below {}",
                    of_plan.len()
                );
            };
            placement.rows.push((*id, *key));
        }
        let rows = plan.key.len();
        let ends = (1..=rows.div_ceil(plan.rows_per_page)).map(|page| page * plan.rows_per_page);
        placement.page_ends.extend(ends.map(|end| first + end.min(rows) as u32));
        let replicas = placement.replica_rows.len() as u32;
        let skip = usize::from(!placement.replica_starts.is_empty());
        let starts = plan.replica_starts.iter().skip(skip);
        let starts = starts.map(|start| replicas.saturating_add(*start));
        placement.replica_starts.extend(starts);
        placement
            .replica_rows
            .extend(plan.replica_rows.iter().map(|row| first.saturating_add(*row)));
    }
    Ok(placement)
}
