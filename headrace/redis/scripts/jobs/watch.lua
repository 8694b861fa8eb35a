-- @include queue_position
-- Read the state of watched jobs. KEYS: none. ARGV: 1 queue prefix, then ids.
-- Returns per id {state, attempts, token, started, ended, place in the queue or 0 (for a scheduled job when it is due, in
-- us), progress, stages, the error of the last try if it is scheduled}, or 0 if it is unknown.
local answer = {}
for i = 2, #ARGV do
  local id = ARGV[i]
  local state, attempts, token, started, ended, model, step, ticket, progress, stages, error =
    unpack(read(id, 's', 'a', 't', 'st', 'en', 'm', 'p', 'n', 'pg', 'sg', 'e'))
  if not state then
    answer[i - 1] = 0
  else
    local place = 0
    if state == 'q' and ticket and model then
      place = place_of(ARGV[1] .. model, step, ticket)
    elseif state == 'd' and model then
      place = due_of(ARGV[1] .. model, id)
    end
    answer[i - 1] = {state, attempts or '', token or '', started or '', ended or '', place, state == 'r' and progress or '',
      state == 'r' and stages or '', state == 'd' and error or ''}
  end
end
return answer
