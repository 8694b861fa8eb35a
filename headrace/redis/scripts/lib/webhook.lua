-- Sending the background task that notifies a webhook.

-- The list of tasks is short. What does not find room there waits for its turn, so that an API key with many tasks
-- delays only its own. Each of its tasks has the turn after the one before. A key without tasks has the present turn.
local TASKS_MAX = 64

-- Sends a task of an API key (nil: none). Keys of another type do no harm.
local function push_task(owner, task)
  local length = try('LLEN', TASKS)
  if type(length) == 'number' and length < TASKS_MAX and call('EXISTS', keys.WAITING_TASKS) == 0 then
    try('LPUSH', TASKS, task)
    return
  end
  local turns = try('HMGET', keys.TASK_TURNS, owner or '', ':now')
  local turn = turns.err and 0 or math.max(tonumber(turns[1] or '0'), tonumber(turns[2] or '0'))
  try('HSET', keys.TASK_TURNS, owner or '', whole(turn + 1))
  try('ZADD', keys.WAITING_TASKS, whole(turn), task)
end

-- Sends the task for a job's start, once: `task` is the record's, as the submit wrote it.
local function send_start_task(id, owner, task)
  redis.call('HDEL', JOB .. id, 'ws')
  push_task(owner, task)
end

-- Sends the task for a job's end, as the submit wrote it, if `events` has the letter of the state. How the job ended is
-- noted per API key (`owner`). The reason is that its record may be gone when the task runs, and another key may use
-- its id by then. Keys of another type do no harm.
local function send_webhook_task(id, events, state, owner)
  local task = string.find(events, state, 1, true) and redis.call('HGET', JOB .. id, 'wh')
  if not task then return end
  redis.pcall('HSET', HOOK .. id, 'e:' .. (owner or ''), state .. NOW)
  redis.pcall('EXPIRE', HOOK .. id, HOOK_TTL_S)
  push_task(owner, task)
end
