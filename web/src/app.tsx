// The frame around the pages: who looks, which run, which page, and whether the line stands.
import { useEffect, useRef, useState, type FormEvent, type ReactNode } from "react";
import { setToken, token, type Summary } from "./api";
import { connect, disconnect, usePicture, watch, type Picture } from "./live";
import { Badge, Empty, Link, Loading } from "./parts";
import { pathTo, read, usePath, type Route } from "./route";
import { CheckpointsPage } from "./pages/checkpoints";
import { CreditPage } from "./pages/credit";
import { EventsPage } from "./pages/events";
import { JoinPage } from "./pages/join";
import { MapPage } from "./pages/map";
import { NewRunPage } from "./pages/newrun";
import { NodePage } from "./pages/node";
import { NodesPage } from "./pages/nodes";
import { RunPage } from "./pages/run";

export interface PageProps { picture: Picture; run: string; item: string }
interface Page { title: string; icon: string; draw: (props: PageProps) => ReactNode; needsRun: boolean; hidden?: boolean }

const PAGES: Record<string, Page> = {
  run: { title: "Run", icon: "M3 17l5-6 4 3 6-9 3 4", draw: RunPage, needsRun: true },
  nodes: { title: "Nodes", icon: "M4 5h16v5H4zM4 14h16v5H4z", draw: NodesPage, needsRun: true },
  node: { title: "Node", icon: "", draw: NodePage, needsRun: true, hidden: true },
  map: { title: "Map", icon: "M12 5a2 2 0 110 .1M5 18a2 2 0 110 .1M19 18a2 2 0 110 .1M12 7l-6 9M12 7l6 9M7 18h10", draw: MapPage, needsRun: true },
  checkpoints: { title: "Checkpoints", icon: "M5 4h11l3 3v13H5zM8 4v6h7V4M8 20v-6h8v6", draw: CheckpointsPage, needsRun: true },
  credit: { title: "Credit", icon: "M12 3a9 9 0 110 18 9 9 0 010-18zM12 7v10M9 9.5h4.5a2 2 0 010 4H9", draw: CreditPage, needsRun: true },
  events: { title: "Events", icon: "M4 6h16M4 12h16M4 18h10", draw: EventsPage, needsRun: true },
  join: { title: "Join", icon: "M12 4v16M4 12h16", draw: JoinPage, needsRun: true },
  new: { title: "New run", icon: "M6 4l14 8-14 8z", draw: NewRunPage, needsRun: false },
};

export function App() {
  const picture = usePicture();
  const route = read(usePath());
  const signedIn = token() !== "" && picture.line !== "denied";
  useEffect(() => {
    if (token()) connect();
  }, []);
  const run = route.run ?? latest(picture);
  useEffect(() => watch(run), [run]);
  useEffect(() => {
    document.title = `${PAGES[route.page]?.title ?? "Not found"} · Shoal`;
  }, [route.page]);
  if (!signedIn) return <SignIn why={picture.line === "denied" ? picture.why : ""} />;
  return (
    <div className="frame">
      <a className="skip" href="#main">Skip to the content</a>
      <Side picture={picture} route={route} run={run} />
      <main id="main" tabIndex={-1}>
        <LostLine picture={picture} />
        <Body picture={picture} route={route} run={run} />
      </main>
    </div>
  );
}

function latest(picture: Picture): string | null {
  const runs = [...picture.runs.values()];
  return (runs.find((item) => item.stopped == null) ?? runs[0])?.run ?? null;
}

function Body({ picture, route, run }: { picture: Picture; route: Route; run: string | null }) {
  const page = PAGES[route.page];
  if (!page) return <Empty page title="There is no such page."><Link to="/">To the run</Link></Empty>;
  const known = run !== null && picture.runs.has(run);
  if (page.needsRun && !known) {
    if (!picture.loaded) return <Loading what="the runs" />;
    return (
      <Empty page title={run ? "This coordinator has no such run." : "No runs yet."}>
        <p>Start one from a recipe and a dataset.</p>
        <Link to="/new" className="button">New run</Link>
      </Empty>
    );
  }
  const Draw = page.draw;
  // A page that shows no run stays as it is when the latest run becomes another: somebody may be filling it in.
  const key = page.needsRun ? `${route.page}/${run}/${route.item}` : route.page;
  return <Draw key={key} picture={picture} run={run ?? ""} item={route.item} />;
}

function LostLine({ picture }: { picture: Picture }) {
  if (picture.line === "live") return null;
  const words = picture.line === "lost" ? "The coordinator does not answer. Connecting again …" : "Connecting …";
  return <div className={`line ${picture.line}`} role="status">{words}</div>;
}

function Side({ picture, route, run }: { picture: Picture; route: Route; run: string | null }) {
  const pages = useRef<HTMLElement>(null);
  // On a phone the list of pages is wider than the screen: the current one is moved into sight.
  useEffect(() => {
    const here = pages.current?.querySelector<HTMLElement>("[aria-current]");
    if (pages.current && here) pages.current.scrollLeft = here.offsetLeft - pages.current.clientWidth / 2;
  }, [route.page]);
  return (
    <header className="side">
      <div className="brand">
        <Link to="/" label="Shoal, to the run">Shoal</Link>
        <Theme />
      </div>
      <RunChoice picture={picture} route={route} run={run} />
      <nav aria-label="Pages" ref={pages}>
        {Object.entries(PAGES).filter(([, page]) => !page.hidden).map(([name, page]) => (
          <Link key={name} to={pathTo(name, page.needsRun ? run : null)}
            current={route.page === name || (name === "nodes" && route.page === "node")}>
            <svg viewBox="0 0 24 24" aria-hidden="true"><path d={page.icon} /></svg>{page.title}
          </Link>
        ))}
      </nav>
      <div className="foot">
        <span className={`dot ${picture.line}`} aria-hidden="true" /> {picture.line === "live" ? "live" : picture.line}
        {picture.scope && <> · {picture.scope}</>}
        <button type="button" className="quiet" onClick={() => (setToken(""), disconnect())}>Sign out</button>
      </div>
    </header>
  );
}

function RunChoice({ picture, route, run }: { picture: Picture; route: Route; run: string | null }) {
  const runs = [...picture.runs.values()];
  if (!runs.length) return null;
  const now = runs.find((item) => item.run === run);
  const page = PAGES[route.page]?.needsRun && !PAGES[route.page]?.hidden ? route.page : "run";
  return (
    <div className="which">
      <label>
        <span className="visually-hidden">Run</span>
        <select value={run ?? ""} onChange={(event) => {
          history.pushState(null, "", pathTo(page, event.target.value));
          dispatchEvent(new Event("shoal-route"));
        }}>
          {runs.map((item) => <option key={item.run} value={item.run}>{titled(item, runs)}</option>)}
        </select>
      </label>
      {now && <Badge state={now.state} />}
    </div>
  );
}

// Runs of one name are told apart by their ids.
function titled(run: Summary, runs: Summary[]): string {
  const alone = runs.filter((other) => other.name === run.name).length < 2;
  return alone ? run.name : `${run.name} · ${run.run.slice(0, 6)}`;
}

function Theme() {
  const [theme, setTheme] = useState(() => localStorage.getItem("shoal-theme") ?? "");
  useEffect(() => {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
  }, [theme]);
  const dark = theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const swap = () => {
    const next = dark ? "light" : "dark";
    localStorage.setItem("shoal-theme", next);
    setTheme(next);
  };
  return (
    <button type="button" className="quiet" onClick={swap} aria-label={dark ? "Light colours" : "Dark colours"}>
      <svg viewBox="0 0 24 24" aria-hidden="true"><path d={dark ? "M12 4V2M12 22v-2M4 12H2M22 12h-2M6 6L5 5M19 19l-1-1M6 18l-1 1M19 5l-1 1M12 7a5 5 0 110 10 5 5 0 010-10z" : "M20 14A8 8 0 1110 4a7 7 0 0010 10z"} /></svg>
    </button>
  );
}

function SignIn({ why }: { why: string }) {
  const [said, setSaid] = useState("");
  const enter = (event: FormEvent) => {
    event.preventDefault();
    setToken(said);
    connect();
  };
  return (
    <main className="signin">
      <form onSubmit={enter}>
        <h1>Shoal</h1>
        <p>A token shows the runs; with the right one you also start and stop them.</p>
        <label htmlFor="token">Token</label>
        <input id="token" type="password" autoComplete="current-password" value={said} autoFocus required
          aria-describedby="token-hint" aria-invalid={why ? true : undefined}
          onChange={(event) => setSaid(event.target.value)} />
        <p id="token-hint" className="hint">
          They lie in the coordinator's home: <code>coordinator/view-token</code>, <code>operate-token</code> and <code>admin-token</code>.
        </p>
        {why && <p className="failure" role="alert">{why}</p>}
        <button type="submit" className="primary">Look</button>
      </form>
    </main>
  );
}
