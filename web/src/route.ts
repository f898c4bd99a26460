// Addresses: /run/RUN/PAGE/ITEM, /new. The browser's back button works, and a reload shows the same.
import { useSyncExternalStore } from "react";

export interface Route { run: string | null; page: string; item: string }

export function read(path: string): Route {
  const [first = "", run = "", page = "", item = ""] = path.split("/").filter(Boolean).map(decodeURIComponent);
  if (first === "run" && run) return { run, page: page || "run", item };
  return { run: null, page: first || "run", item: run };
}

export function pathTo(page: string, run: string | null, item = ""): string {
  const parts = run ? ["run", run, ...(page === "run" ? [] : [page]), ...(item ? [item] : [])] : page === "run" ? [] : [page];
  return "/" + parts.map(encodeURIComponent).join("/");
}

const changed = "shoal-route";

export function go(path: string): void {
  history.pushState(null, "", path);
  dispatchEvent(new Event(changed));
  scrollTo(0, 0);
}

export function usePath(): string {
  return useSyncExternalStore(
    (tell) => {
      addEventListener("popstate", tell);
      addEventListener(changed, tell);
      return () => {
        removeEventListener("popstate", tell);
        removeEventListener(changed, tell);
      };
    },
    () => location.pathname,
  );
}
