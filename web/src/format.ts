// Numbers as people read them.

export function bytes(count: number | null | undefined): string {
  if (count == null) return "–";
  let value = count;
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (Math.abs(value) < 1000) return unit === "B" ? `${Math.round(value)} B` : `${value.toFixed(1)} ${unit}`;
    value /= 1000;
  }
  return `${value.toFixed(1)} TB`;
}

export function count(value: number | null | undefined): string {
  if (value == null) return "–";
  if (Math.abs(value) < 10_000) return Math.round(value).toLocaleString("en");
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]] as const) {
    if (Math.abs(value) >= size) return `${(value / size).toFixed(1)}${unit}`;
  }
  return String(value);
}

export function plural(number: number, what: string): string {
  return `${number} ${what}${number === 1 ? "" : "s"}`;
}

export function loss(value: number | null | undefined): string {
  return value == null ? "–" : value.toFixed(4);
}

export function duration(seconds: number | null | undefined): string {
  if (seconds == null || !Number.isFinite(seconds)) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes}:${String(Math.floor(seconds % 60)).padStart(2, "0")} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours}:${String(minutes % 60).padStart(2, "0")} h` : `${(hours / 24).toFixed(1)} days`;
}

// Made once: a formatter costs far more to make than to use.
const CLOCK = new Intl.DateTimeFormat([], { timeStyle: "medium", hour12: false });
const DAY = new Intl.DateTimeFormat([], { dateStyle: "medium", timeStyle: "medium", hour12: false });

export function clock(ms: number): string {
  return CLOCK.format(ms);
}

export function day(ms: number): string {
  return DAY.format(ms);
}

export function credits(micro: number | null | undefined): string {
  return micro == null ? "–" : (micro / 1e6).toLocaleString("en", { maximumFractionDigits: micro >= 1e9 ? 1 : 3 });
}

export function short(id: string): string {
  return id.slice(0, 8);
}

export function percent(share: number | null | undefined): string {
  return share == null || !Number.isFinite(share) ? "–" : `${Math.round(share * 100)}%`;
}
