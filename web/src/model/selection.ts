// What is shown is loaded first: a result that comes after another one was selected is dropped.

/** Gives the result of the newest request alone. */
export class Latest {
  private requests = 0;

  /** `then` is called unless another request was made meanwhile. */
  async take<T>(promise: Promise<T>, then: (value: T) => void): Promise<boolean> {
    const mine = ++this.requests;
    const value = await promise;
    if (mine !== this.requests) return false;
    then(value);
    return true;
  }
}
