// The dashboard is built into the Python package, so that nobody who uses Shoal needs Node.js.
import react from "@vitejs/plugin-react";
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { defineConfig, type Plugin } from "vite";

const TARGET = "../src/shoal/apps/dashboard";

// What was built, so that a test can tell when the sources have changed since.
function sourceHash(): Plugin {
  return {
    name: "source-hash",
    closeBundle() {
      const files = readdirSync("src", { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile());
      const paths = files.map((entry) => join(entry.parentPath, entry.name)).concat("index.html", "package.json").sort();
      const hash = createHash("sha256");
      for (const path of paths) hash.update(path).update("\0").update(readFileSync(path)).update("\0");
      writeFileSync(join(TARGET, "source.txt"), hash.digest("hex") + "\n");
    },
  };
}

export default defineConfig({
  plugins: [react(), sourceHash()],
  build: {
    outDir: TARGET,
    emptyOutDir: true,
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
  },
});
