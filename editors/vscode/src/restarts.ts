/** How often a server that ends is started again. */

/** Starts within this time, in milliseconds, count together. */
const WINDOW = 3 * 60 * 1000;
const LIMIT = 4;

export class RestartLimit {
  private ends: number[] = [];

  /** Return true if a server that has just ended may be started again. */
  public mayRestart(now: number): boolean {
    this.ends = [...this.ends.filter((end) => now - end < WINDOW), now];
    return this.ends.length <= LIMIT;
  }
}
