import { createRoot } from "react-dom/client";
import "uplot/dist/uPlot.min.css";
import { takeTokenFromAddress } from "./api";
import { App } from "./app";
import "./styles.css";

takeTokenFromAddress();
createRoot(document.getElementById("root")!).render(<App />);
