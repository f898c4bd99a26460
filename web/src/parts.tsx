// What the pages are made of.
import { memo, useCallback, useEffect, useMemo, useRef, useState, type ReactNode } from "react";
import { ask, Refused } from "./api";
import { go } from "./route";

export function Link({ to, children, className, current, label }:
  { to: string; children: ReactNode; className?: string; current?: boolean; label?: string }) {
  return (
    <a href={to} className={className} aria-current={current ? "page" : undefined} aria-label={label}
      onClick={(event) => {
        if (event.metaKey || event.ctrlKey || event.shiftKey) return;
        event.preventDefault();
        go(to);
      }}>
      {children}
    </a>
  );
}

export function Card({ title, children, aside, className = "" }:
  { title?: string; children: ReactNode; aside?: ReactNode; className?: string }) {
  return (
    <section className={`card ${className}`}>
      {title && <header><h2>{title}</h2>{aside}</header>}
      {children}
    </section>
  );
}

export function Stat({ name, value, hint }: { name: string; value: ReactNode; hint?: string }) {
  return <div className="stat" title={hint}><dt>{name}</dt><dd>{value}</dd></div>;
}

const TONES: Record<string, string> = {
  in: "good", running: "good", next: "calm", over: "calm", waiting: "warn", behind: "warn", finishing: "warn",
  paused: "warn", silent: "bad", gone: "off", banned: "bad", accepted: "good", late: "warn", rejected: "bad", open: "calm",
  info: "calm", warning: "warn", error: "bad",
  recorded: "off", signed: "calm", pending: "warn", mined: "calm", final: "good", failed: "bad", lost: "bad",
};
const WORDS: Record<string, string> = { in: "in the round", next: "ready", silent: "silent", gone: "gone", behind: "behind" };

export function tone(state: string): string {
  return TONES[state] ?? "calm";
}

export function Badge({ state }: { state: string }) {
  return <span className={`badge ${tone(state)}`}>{WORDS[state] ?? state}</span>;
}

// `page`: it stands for a whole page, and its title is the page's.
export function Empty({ title, children, page }: { title: string; children?: ReactNode; page?: boolean }) {
  const Lead = page ? "h1" : "p";
  return (
    <div className="empty">
      <svg viewBox="0 0 64 32" aria-hidden="true"><path d="M6 16c10-12 26-12 38 0l12-9v18l-12-9c-12 12-28 12-38 0z" /></svg>
      <Lead className="lead">{title}</Lead>
      {children && <div>{children}</div>}
    </div>
  );
}

export function Loading({ what }: { what: string }) {
  return (
    <div className="loading" role="status">
      <span className="visually-hidden">Loading {what}</span>
      <i /><i /><i />
    </div>
  );
}

// `page`: the title of the page that it stands for.
export function Failure({ error, retry, page }: { error: unknown; retry?: () => void; page?: string }) {
  const problem = error instanceof Refused ? error.problem : null;
  return (
    <>
      {page && <div className="title"><h1>{page}</h1></div>}
      <div className="failure" role="alert">
        <strong>{problem?.detail ?? String(error)}</strong>
        {problem?.next_step && <p>{problem.next_step}</p>}
        {problem?.code && <code>{problem.code}</code>}
        {retry && <button type="button" onClick={retry}>Try again</button>}
      </div>
    </>
  );
}

const AGAIN_MS = 2000;

// An answer of the API, asked for again when `key` changes, and by itself while the coordinator is away.
export function useAnswer<T>(path: string | null, key: unknown = 0) {
  const [answer, setAnswer] = useState<T | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    if (!path) return;
    const stop = new AbortController();
    ask<T>(path, { signal: stop.signal })
      .then((found) => (setAnswer(found), setError(null)))
      .catch((reason: unknown) => {
        if (!stop.signal.aborted) setError(reason);
      });
    return () => stop.abort();
  }, [path, key, turn]);
  const retry = useCallback(() => setTurn((n) => n + 1), []);
  useEffect(() => {
    if (!(error instanceof Refused) || error.problem.status !== 0) return;
    const later = setTimeout(retry, AGAIN_MS);
    return () => clearTimeout(later);
  }, [error, retry]);
  return { answer, error, retry };
}

export function Copy({ text, label }: { text: string; label: string }) {
  const [done, setDone] = useState(false);
  const copy = () => void navigator.clipboard.writeText(text).then(() => {
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  });
  return <button type="button" onClick={copy} aria-live="polite">{done ? "Copied" : label}</button>;
}

export interface Column<T> {
  name: string;
  key: string;
  cell: (row: T) => ReactNode;
  order?: (row: T) => number | string;
  numeric?: boolean;
  wide?: boolean;
}

const ROW_PX = 40;
const SPARE_ROWS = 6;

// A sortable table that draws only the rows in sight.
export function Rows<T>({ columns, rows, id, caption, first }:
  { columns: Column<T>[]; rows: T[]; id: (row: T) => string; caption: string; first: string }) {
  const [sort, setSort] = useState({ key: first, down: false });
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const watcher = new ResizeObserver(([entry]) => entry && setHeight(entry.contentRect.height));
    if (box.current) watcher.observe(box.current);
    return () => watcher.disconnect();
  }, []);
  const sorted = useMemo(() => inOrder(rows, columns, sort), [rows, columns, sort]);
  const start = Math.max(0, Math.floor(top / ROW_PX) - SPARE_ROWS);
  const stop = Math.min(sorted.length, Math.ceil((top + height) / ROW_PX) + SPARE_ROWS);
  return (
    <div className="rows" ref={box} tabIndex={0} role="region" aria-label={caption}
      onScroll={(event) => setTop(event.currentTarget.scrollTop)}>
      <table aria-rowcount={sorted.length + 1}>
        <caption className="visually-hidden">{caption}</caption>
        <thead>
          <tr>
            {columns.map((column) => (
              <th key={column.key} scope="col" className={column.numeric ? "numeric" : ""}
                aria-sort={sort.key === column.key ? (sort.down ? "descending" : "ascending") : undefined}>
                {column.order ? (
                  <button type="button" onClick={() => setSort({ key: column.key, down: sort.key === column.key && !sort.down })}>
                    {column.name}<span aria-hidden="true">{sort.key === column.key ? (sort.down ? " ▾" : " ▴") : ""}</span>
                  </button>
                ) : column.name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {start > 0 && <tr aria-hidden="true" style={{ height: start * ROW_PX }}><td colSpan={columns.length} /></tr>}
          {sorted.slice(start, stop).map((row, place) => (
            <Row key={id(row)} id={id(row)} place={start + place + 2} row={row} columns={columns as Column<unknown>[]} />
          ))}
          {stop < sorted.length && (
            <tr aria-hidden="true" style={{ height: (sorted.length - stop) * ROW_PX }}><td colSpan={columns.length} /></tr>
          )}
        </tbody>
      </table>
    </div>
  );
}

// A row is drawn again when it changed, whatever happens to the others.
const Row = memo(function Row({ id, place, row, columns }: { id: string; place: number; row: unknown; columns: Column<unknown>[] }) {
  return (
    <tr aria-rowindex={place} data-row={id}>
      {columns.map((column) => (
        <td key={column.key} className={`${column.numeric ? "numeric" : ""} ${column.wide ? "wide" : ""}`}>
          {column.cell(row)}
        </td>
      ))}
    </tr>
  );
});

// Made once: a collator compares far faster than a string that is asked to.
const WORDS_IN_ORDER = new Intl.Collator();

function inOrder<T>(rows: T[], columns: Column<T>[], sort: { key: string; down: boolean }): T[] {
  const order = columns.find((column) => column.key === sort.key)?.order;
  if (!order) return rows;
  const sign = sort.down ? -1 : 1;
  const keyed = rows.map((row) => ({ row, by: order(row) }));
  keyed.sort((a, b) => sign * (typeof a.by === "number" && typeof b.by === "number" ? a.by - b.by : WORDS_IN_ORDER.compare(String(a.by), String(b.by))));
  return keyed.map((item) => item.row);
}

export function Choice({ name, value, options, onChange }:
  { name: string; value: string; options: readonly (readonly [string, string])[]; onChange: (value: string) => void }) {
  return (
    <div className="choice" role="group" aria-label={name}>
      {options.map(([key, label]) => (
        <button key={key} type="button" aria-pressed={value === key} onClick={() => onChange(key)}>{label}</button>
      ))}
    </div>
  );
}
