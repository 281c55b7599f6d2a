//! `workflows list` and `instances list`.

use std::time::Duration;

use crate::api::{Instance, Item, PAGE_SIZE_MAX, Query};
use crate::args::{ListArgs, Target};
use crate::clock;
use crate::failure::Result;
use crate::paint::{Column, table};
use crate::sentences;
use crate::session::Session;
use crate::text::{safe, short};
use crate::time::Moment;

/// How many instances are asked about at the same time.
const ASKED_AT_ONCE: usize = 8;

pub(crate) fn workflows(session: &Session) -> Result<()> {
    let failed = |failure| session.advise(failure, "", None);
    let known = session.client.workflows().map_err(failed)?.workflows;
    if known.is_empty() {
        session.note("the server knows no workflows");
        return Ok(());
    }
    for workflow in &known {
        session.print(&safe(&workflow.name))?;
    }
    session.note(&format!("next: {}", session.command_without_target("instances list")));
    Ok(())
}

/// A row of the table.
struct Row {
    workflow: String,
    item: Item,
    /// Not known with `--brief`, or if it is gone by now.
    instance: Option<Instance>,
}

pub(crate) fn instances(session: &Session, args: &ListArgs) -> Result<()> {
    let workflows = match &args.workflow {
        Some(workflow) => vec![workflow.clone()],
        None => session.client.workflows()?.workflows.into_iter().map(|w| w.name).collect(),
    };
    let mut rows = Vec::new();
    let mut more = false;
    for workflow in &workflows {
        more |= list_one(session, args, workflow, &mut rows)?;
    }
    if rows.is_empty() {
        session.note(&nothing(args));
        return Ok(());
    }
    session.print(&rows_to_table(session, args, &rows))?;
    if more {
        session.note("there are more: --all lists them all, --limit N more of them");
    }
    Ok(())
}

/// Adds the instances of one workflow. Returns whether there are more than were asked for.
fn list_one(
    session: &Session,
    args: &ListArgs,
    workflow: &str,
    rows: &mut Vec<Row>,
) -> Result<bool> {
    let mut left = if args.all { usize::MAX } else { args.limit as usize };
    let created_after = args.since.map(|since| moments_ago(since).iso());
    let mut cursor = None;
    loop {
        let query = Query::default()
            .maybe("status", args.status.as_deref())
            .maybe("createdAfter", created_after.as_deref())
            .with("pageSize", &left.min(PAGE_SIZE_MAX).to_string())
            .maybe("cursor", cursor.as_deref());
        let page = session.client.instances(workflow, query)?;
        left = left.saturating_sub(page.instances.len());
        rows.extend(with_details(session, args, workflow, page.instances)?);
        cursor = page.cursor;
        if !page.has_next_page || cursor.is_none() || left == 0 {
            return Ok(page.has_next_page);
        }
    }
}

fn moments_ago(since: Duration) -> Moment {
    Moment(clock::now().0 - i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// Asks about each of a page's instances, a few at a time.
fn with_details(
    session: &Session,
    args: &ListArgs,
    workflow: &str,
    items: Vec<Item>,
) -> Result<Vec<Row>> {
    let ask = |item: &Item| {
        if args.brief {
            return Ok(None);
        }
        let target = Target { workflow: workflow.to_owned(), id: item.id.clone() };
        match session.client.instance(&target) {
            Ok(instance) => Ok(Some(instance)),
            Err(failure) if failure.has_code("INSTANCE_NOT_FOUND") => Ok(None),
            Err(failure) => Err(failure),
        }
    };
    let mut rows = Vec::with_capacity(items.len());
    let mut items = items.into_iter().peekable();
    while items.peek().is_some() {
        let some: Vec<Item> = items.by_ref().take(ASKED_AT_ONCE).collect();
        let answers: Vec<Result<Option<Instance>>> = std::thread::scope(|scope| {
            let asked: Vec<_> = some.iter().map(|item| scope.spawn(|| ask(item))).collect();
            asked.into_iter().map(|thread| thread.join().expect("asking does not panic")).collect()
        });
        for (item, answer) in some.into_iter().zip(answers) {
            rows.push(Row { workflow: workflow.to_owned(), item, instance: answer? });
        }
    }
    Ok(rows)
}

fn rows_to_table(session: &Session, args: &ListArgs, rows: &[Row]) -> String {
    let now = clock::now();
    let mut columns = vec![
        ("WORKFLOW", Column::Plain),
        ("ID", Column::Plain),
        ("STATUS", Column::Status),
        ("CREATED", Column::Dim),
        ("NOW", Column::Plain),
    ];
    if args.brief {
        columns.truncate(3);
    }
    if args.workflow.is_some() {
        columns.remove(0);
    }
    let cells = |row: &Row| {
        // The details are newer than the list; both must tell the same moment.
        let details = row.instance.as_ref().map_or(&row.item.details, |i| &i.details);
        let created = row.instance.as_ref().map(|i| i.meta.created_at.relative_to(now));
        let doing = match &row.instance {
            Some(instance) => sentences::doing(instance, now),
            None => sentences::outcome(details),
        };
        let mut cells = vec![
            safe(&row.workflow),
            safe(&row.item.id),
            safe(&details.status),
            created.unwrap_or_default(),
            short(&doing),
        ];
        if args.brief {
            cells.truncate(3);
        }
        if args.workflow.is_some() {
            cells.remove(0);
        }
        cells
    };
    let cells: Vec<Vec<String>> = rows.iter().map(cells).collect();
    table(session.paint, &columns, &cells)
}

fn nothing(args: &ListArgs) -> String {
    let which = args.status.as_deref().map(|status| format!("{status} ")).unwrap_or_default();
    let of = args.workflow.as_deref().map(|w| format!(" of `{}`", safe(w))).unwrap_or_default();
    let when = if args.since.is_some() { " in that time" } else { "" };
    format!("there are no {which}instances{of}{when}")
}
